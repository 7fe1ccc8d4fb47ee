"""uvloop's source distribution, for its tests: fetched by pip once and kept in the user's cache folder."""
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.23.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gmploop-tests"
FETCH_S = 300


def fetch():
    """The folder of the unpacked source; LookupError says why it cannot be had."""
    folder = CACHE / f"uvloop-{VERSION}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as new:
        # not `--no-binary :all:`, which would build the build tools as well
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "uvloop",
                   "--dest", new, f"uvloop=={VERSION}"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_S)
        except subprocess.CalledProcessError as e:
            raise LookupError(f"pip cannot fetch uvloop's source: {e.stderr.strip()[-500:]}") from e
        except subprocess.TimeoutExpired as e:
            raise LookupError(f"pip did not fetch uvloop's source within {FETCH_S} s") from e
        with tarfile.open(next(Path(new).glob("*.tar.gz"))) as tar:
            tar.extractall(new, filter="data")
        try:
            (Path(new) / folder.name).rename(folder)
        except OSError:                     # another run was faster
            if not folder.exists():
                raise
    return folder
