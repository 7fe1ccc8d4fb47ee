"""Server programs that the tests start on loopback and stop again, whatever happened in between."""

import glob
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
START_S = 20  # a server that answers no sooner has failed


def program(name, package=None):
    """The path of a server program; skips the test where there is none."""
    places = [os.environ["PATH"], "/usr/sbin", "/usr/local/sbin", *sorted(glob.glob("/usr/lib/postgresql/*/bin"))[::-1]]
    found = shutil.which(name, path=os.pathsep.join(places))
    if not found:
        pytest.skip(f"{name} is not installed (system package {package or name})")
    return found


def free_port():
    """A port that nobody has, below the kernel's ephemeral range so that no outgoing connection takes it."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port in 100 tries")


def wait_listening(port, process=None, timeout_s=START_S):
    """Return once 127.0.0.1:port accepts; raise when the process ended or the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError as error:
            if process is not None and process.poll() is not None:
                raise RuntimeError(f"{process.args} exited with {process.returncode}") from error
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class Server:
    """A child process that listens on `port`; a context manager that stops it at the end.

    `setpriv` has the kernel end the child when the test process is killed, too.
    """

    stop_signal = signal.SIGTERM
    ready_line = ""  # what the log holds once it serves, where listening alone does not say so

    def __init__(self, port, command, log, user=()):
        self.port = port
        setpriv = shutil.which("setpriv")
        if setpriv:
            command = [setpriv, *user, "--pdeathsig", "KILL", *command]
        self.log = Path(log)
        with open(log, "wb") as out:
            self.process = subprocess.Popen(command, cwd=self.log.parent, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out)

    def __enter__(self):
        try:
            wait_listening(self.port, self.process)
            deadline = time.monotonic() + START_S
            while self.ready_line not in self.log.read_text(errors="replace"):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no {self.ready_line!r} in {START_S} s")
                time.sleep(0.02)
        except BaseException as error:
            self.stop()
            raise RuntimeError(self.log.read_text(errors="replace")) from error
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        self.process.send_signal(self.stop_signal)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Certificates:
    """A self-signed certificate for localhost and 127.0.0.1: `cert` is its own authority."""

    def __init__(self, folder):
        self.cert, self.key = str(folder / "cert.pem"), str(folder / "key.pem")
        subprocess.run(
            [program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
             "-addext", "keyUsage=critical,digitalSignature,keyCertSign", "-keyout", self.key, "-out", self.cert],
            check=True, capture_output=True)


class Postgres(Server):
    """PostgreSQL over TCP (TLS too) and a Unix socket in `folder`. It refuses to run as root, so root lends it a user."""

    stop_signal = signal.SIGINT  # fast shutdown
    ready_line = "ready to accept connections"

    def __init__(self, certificates):
        initdb, postgres = program("initdb", "postgresql"), program("postgres", "postgresql")
        # not pytest's own folder: that one is closed to other users
        self.folder = tempfile.mkdtemp(prefix="pg-")
        user = []
        if os.geteuid() == 0:
            try:
                account = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
            program("setpriv", "util-linux")
            user = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        data = f"{self.folder}/data"
        for name, source in (("server.crt", certificates.cert), ("server.key", certificates.key)):
            shutil.copy(source, f"{self.folder}/{name}")
            os.chmod(f"{self.folder}/{name}", 0o600)
        if user:
            for path in (self.folder, *glob.glob(f"{self.folder}/*")):
                os.chown(path, account.pw_uid, account.pw_gid)
        made = subprocess.run(
            [*(["setpriv", *user] if user else []), initdb, "-D", data, "-U", "tester", "--auth=trust", "--no-sync",
             "--encoding=UTF8", "--locale=C"], cwd=self.folder, capture_output=True, text=True)
        if made.returncode:
            shutil.rmtree(self.folder)
            raise RuntimeError(made.stdout + made.stderr)
        port = free_port()
        settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": self.folder, "fsync": "off",
                    "ssl": "on", "ssl_cert_file": f"{self.folder}/server.crt", "ssl_key_file": f"{self.folder}/server.key"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        super().__init__(port, [postgres, "-D", data, *options], f"{self.folder}/log", user)

    def __exit__(self, *exc):
        super().__exit__(*exc)
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis(Server):
    def __init__(self, folder):
        port, self.socket = free_port(), f"{folder}/redis.sock"
        super().__init__(port, [program("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--save", "",
                                "--unixsocket", self.socket, "--dir", str(folder)], f"{folder}/log")


class Nginx(Server):
    """nginx as a reverse proxy that buffers neither way, in one process."""

    def __init__(self, folder, upstream):
        binary, port = program("nginx"), free_port()
        for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
            (folder / name).mkdir(exist_ok=True)
        temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(f"""
            daemon off; master_process off; pid {folder}/pid; error_log {folder}/log warn;
            events {{ worker_connections 512; }}
            http {{
                access_log off; client_body_temp_path {folder}/body; {temporary}
                client_max_body_size 0; proxy_request_buffering off; proxy_buffering off; proxy_read_timeout 1s;
                upstream app {{ server {upstream}; keepalive 8; }}
                map $http_upgrade $connection_header {{ default upgrade; '' ''; }}
                server {{
                    listen 127.0.0.1:{port};
                    location / {{
                        proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Host $host;
                        proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_header;
                    }}
                }}
            }}""")
        super().__init__(port, [binary, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", f"{folder}/log"],
                         f"{folder}/out")
