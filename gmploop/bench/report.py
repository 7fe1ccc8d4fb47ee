"""Medians, ratios, tables and JSON."""

import json
import os
import statistics
import tempfile
from pathlib import Path

from gmploop.bench.loops import C_EPOLL

TITLES = {C_EPOLL: "C epoll"}
BASES = ("asyncio", "uvloop")
SUBJECT = "gmploop"


def summarise(rounds):
    """Medians over the rounds of one row on one loop, and the range of the value."""
    values = [measured["value"] for measured in rounds]
    summary = {}
    for key in rounds[0]:
        column = [measured[key] for measured in rounds if measured[key] is not None]
        numeric = column and isinstance(column[0], (int, float))
        summary[key] = statistics.median(column) if numeric else column[0] if column else None
    return summary | {"low": min(values), "high": max(values)}


def ratios(summaries):
    """For each loop, its value relative to each base's: {"gmploop": {"asyncio": 0.5, "uvloop": 0.7}, ...}."""
    return {loop: {base: summary["value"] / summaries[base]["value"]
                   for base in BASES if base in summaries and base != loop}
            for loop, summary in summaries.items()}


def collect(rows, results, failures, **about):
    """Everything as one JSON-able dict.

    `results`: {row name: {loop: [measurements]}}; `failures`: [(row, loop, why)]; `about`: put in as it is.
    """
    table = {}
    for row in rows:
        summaries = {loop: summarise(rounds) for loop, rounds in results.get(row.name, {}).items() if rounds}
        if summaries:
            table[row.name] = {
                "group": row.group, "what": row.what, "unit": row.unit, "ratios": ratios(summaries),
                "results": {loop: summary | {"rounds": results[row.name][loop]}
                            for loop, summary in summaries.items()}}
    return about | {"schema": 1, "rows": table,
                    "failures": [dict(zip(("row", "loop", "why"), failure)) for failure in failures]}


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
    half_range = (summary["high"] - summary["low"]) / 2 / summary["value"]
    return _number(summary["value"]) + (f" ±{half_range:.0%}" if len(summary["rounds"]) > 1 else "")


def main_table(report, loops):
    """(title, header, lines): each row's value on every loop, and what ours is of stock's and uvloop's."""
    bases = [base for base in BASES if base in loops and SUBJECT in loops]
    failed = {(failure["row"], failure["loop"]) for failure in report["failures"]}
    lines = []
    for name, row in report["rows"].items():
        cells = [_with_spread(row["results"][loop]) if loop in row["results"]
                 else "failed" if (name, loop) in failed else "" for loop in loops]
        shares = [row["ratios"].get(SUBJECT, {}).get(base) for base in bases]
        lines.append([name, row["unit"], *cells, *(f"{share:.2f}" if share else "" for share in shares)])
    header = ["row", "unit", *(TITLES.get(loop, loop) for loop in loops), *(f"/ {base}" for base in bases)]
    return f"medians ± half the range of the rounds; / X: {SUBJECT} relative to X; less is better", header, lines


def server_table(report, loops):
    """(title, header, lines): the other figures of the echo and http rows, or None if there are no such rows."""
    lines = []
    for name, row in report["rows"].items():
        for loop in loops if row["group"] != "micro" else ():
            if one := row["results"].get(loop):
                calls = one.get("syscalls")
                lines.append([name, TITLES.get(loop, loop), f"{one['requests_per_s']:,.0f}", _number(one["value"]),
                              _number(one["user_us"]), _number(one["sys_us"]), _number(one["p50_us"]),
                              _number(one["p99_us"]), f"{one['rss_kb'] / 1024:.0f}", _number(calls)])
    header = ["row", "loop", "requests/s", "CPU µs/request", "user", "system", "p50 µs", "p99 µs", "RSS MB",
              "calls/request"]
    if lines and not any(line[-1] for line in lines):
        header, lines = header[:-1], [line[:-1] for line in lines]
    return ("servers", header, lines) if lines else None


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
