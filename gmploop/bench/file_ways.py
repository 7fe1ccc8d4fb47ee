"""One measurement of a files row by one of its ways, in a process of its own; see `files`."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from loops import enter_child

SETTINGS = enter_child()

import gmploop  # noqa: E402
from gmploop.bench import files  # noqa: E402

row = next(row for row in files.all_rows() if row.name == SETTINGS["row"])
way = next(way for way in row.ways() if way.name == SETTINGS["way"])
with ThreadPoolExecutor() as pool:
    one = way(SETTINGS["path"], SETTINGS["folder"], pool)
    rate, cpu = one.rate(row, SETTINGS["seconds"]) if isinstance(one, files.Fio) else gmploop.run(
        files.rate(one, row, SETTINGS["file_size"], SETTINGS["seconds"]))
json.dump({"value": cpu * 1e6, "cpu_us": cpu * 1e6, "requests_per_s": rate}, sys.stdout)
