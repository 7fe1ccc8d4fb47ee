"""Medians, ratios, tables and JSON."""

import json
import os
import statistics
import tempfile
from pathlib import Path

from gmploop.bench.loops import C_SERVERS

TITLES = {name: server.title for name, server in C_SERVERS.items()}
BASES = ("asyncio", "uvloop")
SUBJECT = "gmploop"
BESIDES = {"p50_ms": "p50 {} ms", "p50_us": "p50 {} µs", "max_ms": "max {} ms", "min_ms": "min {} ms", "wall_us": "wall {} µs",
           "requests_per_s": "{}/s", "samples": "of {}", "cpu_share": "{} cores"}      # of the rows with ways
TOLERANCE = 1.5        # growth: what more than this is no noise, nor the usual effect of larger data; guessed


def summarise(rounds, least=False):
    """Medians over the rounds of one row on one loop (or the round with the least value), and the value's range."""
    values = [measured["value"] for measured in rounds]
    calls = [measured["syscalls"] for measured in rounds if "syscalls" in measured]
    if least:
        rounds = [rounds[values.index(min(values))]]
    summary = {}
    for key in rounds[0]:
        column = [measured[key] for measured in rounds if measured.get(key) is not None]
        numeric = column and isinstance(column[0], (int, float))
        summary[key] = statistics.median(column) if numeric else column[0] if column else None
    return summary | ({"syscalls": calls[0]} if calls else {}) | {"low": min(values), "high": max(values)}


def ratios(summaries, bases):
    """For each loop, its value relative to each base's: {"gmploop": {"asyncio": 0.5, "uvloop": 0.7}, ...}."""
    return {loop: {base: summary["value"] / summaries[base]["value"]
                   for base in bases if base in summaries and base != loop and summaries[base]["value"]}
            for loop, summary in summaries.items()}


def paired(measured, bases):
    """The same, round by round, where each has as many: {"gmploop": {"uvloop": [least, median, most]}, ...}.

    Whether a difference is one shows here: of two that are equal, some rounds go either way.
    """
    values = {loop: [one["value"] for one in rounds] for loop, rounds in measured.items()}
    shares = {loop: {base: sorted(a / b for a, b in zip(column, values[base])) for base in bases
                     if base in values and base != loop and len(values[base]) == len(column) and all(values[base])}
              for loop, column in values.items()}
    return {loop: {base: [column[0], statistics.median(column), column[-1]] for base, column in by.items() if column}
            for loop, by in shares.items()}


def collect(rows, results, failures, lacking, least=False, **about):
    """Everything as one JSON-able dict.

    `results`: {row name: {loop: [measurements]}}; `failures`: [(row, loop, why)]; `lacking`: [(row, loop)]; `least`:
    see summarise(); `about`: put in as it is.
    """
    table = {}
    for row in rows:
        summaries = {loop: summarise(rounds, least) for loop, rounds in results.get(row.name, {}).items() if rounds}
        if summaries:
            bases = [next(iter(summaries))] if row.ways else BASES
            table[row.name] = {
                "part": row.part, "how": row.how, "what": row.what, "unit": row.unit, "series": row.series, "at": row.at,
                "work": row.work, "ways": [way.name for way in row.ways], "ratios": ratios(summaries, bases),
                "paired": paired({loop: results[row.name][loop] for loop in summaries}, bases),
                "results": {loop: summary | {"rounds": results[row.name][loop]}
                            for loop, summary in summaries.items()}}
    return about | {"schema": 3, "rows": table, "growth": growth(table),
                    "failures": [dict(zip(("row", "loop", "why"), failure)) for failure in failures],
                    "lacking": [dict(zip(("row", "loop"), one)) for one in lacking]}


def growth(table):
    """{series: {loop: {"costs": {load: cost}, "flagged": {load: times}}}} of the rows of `collect`.

    A cost is that of one operation, for messages that of one byte. It is flagged where it is more than TOLERANCE times
    the least of the smaller loads, and more than a C server's cost grew in the same place, which is the kernel's and
    the machine's part.
    """
    series = {}
    for row in table.values():
        for loop, one in row["results"].items() if row["series"] else ():
            costs = series.setdefault(row["series"], {}).setdefault(loop, {"costs": {}, "flagged": {}})["costs"]
            costs[row["at"]] = one["value"] / row["work"]
    for loops in series.values():
        servers = [grown(loops[loop]["costs"]) for loop in loops if loop in C_SERVERS]
        for loop, found in loops.items():
            for at, times in grown(found["costs"]).items():
                machine = max((server.get(at, 1) for server in servers), default=1) if loop not in C_SERVERS else 1
                if times > TOLERANCE * max(1, machine):
                    found["flagged"][at] = times
    return series


def grown(costs):
    """{load: cost relative to the least cost of a smaller load}"""
    return {at: cost / min(costs[smaller] for smaller in costs if smaller < at)
            for at, cost in costs.items() if any(smaller < at for smaller in costs)}


def write_json(report, path):
    """Write the report so that `path` holds the old content or the whole new one."""
    path = Path(path)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        json.dump(report, file, indent=1, ensure_ascii=False)
        file.write("\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _number(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _with_spread(summary):
    half_range = (summary["high"] - summary["low"]) / 2 / (abs(summary["value"]) or 1)
    return _number(summary["value"]) + (f" ±{half_range:.0%}" if len(summary["rounds"]) > 1 else "")


def _title(loop):
    return TITLES.get(loop, loop)


def main_table(report, loops):
    """(title, header, lines): each row's value on every loop, and what ours is of stock's and uvloop's."""
    bases = [base for base in BASES if base in loops and SUBJECT in loops]
    absent = {(one["row"], one["loop"]): "failed" for one in report["failures"]}
    absent |= {(one["row"], one["loop"]): "lacks" for one in report["lacking"]}
    lines = []
    for name, row in report["rows"].items():
        if row["ways"]:
            continue
        cells = [_with_spread(row["results"][loop]) if loop in row["results"] else absent.get((name, loop), "")
                 for loop in loops]
        shares = [row["ratios"].get(SUBJECT, {}).get(base) for base in bases]
        lines.append([name, row["unit"], *cells, *(f"{share:.2f}" if share else "" for share in shares)])
    header = ["row", "unit", *map(_title, loops), *(f"/ {base}" for base in bases)]
    what = "least of the rounds" if report["settings"]["least"] else "medians"
    title = f"{what} ± half the range of the rounds; / X: {SUBJECT} relative to X; less is better"
    return (title, header, lines) if lines else None


def ways_table(report, loops):
    """(title, header, lines): the rows whose contestants are not just loops, or None."""
    failed = {(one["row"], one["loop"]) for one in report["failures"]}
    lines = []
    for name, row in report["rows"].items():
        for way in row["ways"]:
            one = row["results"].get(way)
            if one is None:
                lines += [[name, way, row["unit"], "failed", "", ""]] if (name, way) in failed else []
                continue
            share = next(iter(row["ratios"][way].values()), None)
            details = [text.format(one[key] if isinstance(one[key], int) else _number(one[key])) for key, text in BESIDES.items()
                       if one.get(key) is not None and one[key] != one["value"]]
            details += ["the GIL is on"] * bool(report["machine"]["free_threaded"] and one.get("gil"))
            lines.append([name, way, row["unit"], _with_spread(one), f"{share:.2f}" if share else "", ", ".join(details)])
    what = "least of the rounds" if report["settings"]["least"] else "medians"
    return (f"{what} ± half the range of the rounds; / first: relative to the row's first; less is better",
            ["row", "by", "unit", "", "/ first", "besides"], lines) if lines else None


def tail_table(report, loops):
    """(title, header, lines): the latency rows, and how each round compares with uvloop's of that round, or None."""
    lines = []
    for name, row in report["rows"].items():
        for loop in loops if row["part"] == "latency" else ():
            if one := row["results"].get(loop):
                pairs = row["paired"].get(loop, {}).get("uvloop")
                lines.append([name, _title(loop), _number(one["p50_us"]), _with_spread(one), _number(one["max_us"]),
                              f"{len(one['rounds'])} × {one['requests']:,.0f}",
                              f"{pairs[1]:.2f} ({pairs[0]:.2f} to {pairs[2]:.2f})" if pairs else ""])
    header = ["row", "loop", "p50 µs", "the tail µs", "max µs", "samples", "/ uvloop, round by round"]
    return ("latency at fixed rates; the ratios: median (least to most)", header, lines) if lines else None


def server_table(report, loops):
    """(title, header, lines): the other figures of the rows with a server or client, or None if there are none."""
    columns = {"CPU µs": "cpu_us", "user": "user_us", "system": "sys_us", "p50 µs": "p50_us", "p99 µs": "p99_us",
               "p99.9 µs": "p999_us", "calls": "syscalls"}
    lines = []
    for name, row in report["rows"].items():
        shown = row["how"] in ("server", "client") and not row["unit"].startswith("p99.9")     # measured by the row before
        for loop, one in row["results"].items() if shown else ():
            if loop in loops or loop in row["ways"]:
                rss = f"{one['rss_kb'] / 1024:.0f}" if "rss_kb" in one else ""
                lines.append([name, _title(loop), f"{one['requests_per_s']:,.0f}",
                              *(_number(one.get(key)) for key in columns.values()), rss])
    header = ["row", "loop", "requests/s", *columns, "RSS MB"]
    calls = header.index("calls")
    if lines and not any(line[calls] for line in lines):
        header, lines = (header[:calls] + header[calls + 1:], [line[:calls] + line[calls + 1:] for line in lines])
    return ("servers and clients, for each request", header, lines) if lines else None


def micro_table(report, loops):
    """(title, header, lines): the other figures of the rows in one process, or None."""
    lines = [[name, _title(loop), *(_number(one.get(key)) for key in ("cpu_ns", "user_ns", "sys_ns", "wall_ns", "syscalls")),
              f"{one['peak_kb'] / 1024:.0f}"]
             for name, row in report["rows"].items() if row["how"] == "micro"
             for loop in loops if (one := row["results"].get(loop))]
    header = ["row", "loop", "CPU ns", "user", "system", "wall ns", "calls", "peak RSS MB"]
    return ("in one process, for each operation", header, lines) if lines else None


def memory_table(report, loops):
    """(title, header, lines): what idle connections cost, or None."""
    lines = [[name, _title(loop), _number(one["value"]), _number(one["cpu_us_per_s"]), _number(one["wakeups_per_s"]),
              f"{one['rss_kb'] / 1024:.0f}"]
             for name, row in report["rows"].items() if row["how"] == "idle"
             for loop in loops if (one := row["results"].get(loop))]
    header = ["row", "loop", "bytes/connection", "CPU µs/s", "wake-ups/s", "RSS MB"]
    return ("idle connections", header, lines) if lines else None


def growth_table(report, loops):
    """(title, header, lines): the series and where a cost grew more than the work, or None."""
    lines = []
    for series, found in report["growth"].items():
        for loop in (loop for loop in loops if loop in found):
            flags = ", ".join(f"{at:,}: × {times:.1f}" for at, times in found[loop]["flagged"].items())
            costs = " → ".join(f"{at:,}: {_number(cost * 1000 if series.startswith('size') else cost)}"
                               for at, cost in found[loop]["costs"].items())
            lines.append([series, _title(loop), costs, flags or "ok"])
    title = (f"load: cost of an operation (sizes: CPU ns for a byte); flagged: more than {TOLERANCE} × the least of the smaller "
             "loads, and than what a C server's cost grew by")
    return (title, ["series", "loop", "costs", "grows more than the work at"], lines) if lines else None


def print_table(title, header, lines, left=1):
    """Print a table with rich where it is installed, else as plain text. The first `left` columns are flush left."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(header, *lines)]
        print(f"\n{title}")
        for line in (header, ["-" * width for width in widths], *lines):
            print("  ".join(cell.ljust(width) if i < left else cell.rjust(width)
                            for i, (cell, width) in enumerate(zip(line, widths))).rstrip())
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=250)       # a pipe or file has no width: nothing need be wrapped
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1))
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=i == 0)
    for line in lines:
        table.add_row(*line)
    console.print(table)
