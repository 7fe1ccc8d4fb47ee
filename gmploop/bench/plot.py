"""The figures of a run as a PNG: bars relative to stock asyncio, or to a row's first way, and lines for the growth rows.

Needs matplotlib.
"""

from gmploop.bench import report
from gmploop.bench.loops import C_SERVERS

COLOURS = {"asyncio": "#9aa0a6", "uvloop": "#e08f32", "gmploop": "#1f6fb4", "rloop": "#7b5aa6", "blazio": "#c2504d",
           "zloop": "#5b8f3e", "aiofastnet": "#b39b1e"}
SPARE_COLOURS = ("#17becf", "#e377c2", "#8c564b", "#bcbd22")
GROUPS = {"Network, clients and memory": ("echo", "unix", "udp", "tls", "accept", "latency", "web", "db", "memory"),
          "Callbacks, timers, tasks": ("micro",)}
CONTESTS = ("sched", "hops", "isolated", "files")
BAR_INCHES, CEILING = 0.13, 1.6


def draw(whole, path):
    """Draw what `report.collect` returned into `path`."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = {title: names for title, parts in GROUPS.items()
              if (names := [name for name, row in whole["rows"].items() if row["part"] in parts])}
    series = whole["growth"]
    contests = [names for part in CONTESTS if (names := [name for name, row in whole["rows"].items() if row["part"] == part])]
    loops = [loop for loop in whole["loops"] if any(loop in row["results"] for row in whole["rows"].values())]
    tallest = max(map(len, groups.values()), default=0)
    heights = [tallest * (len(loops) + 1) * BAR_INCHES + 1] * bool(groups) + [2.6] * -(-len(series) // 3)
    heights += [sum(len(whole["rows"][name]["results"]) + 1 for name in names) * BAR_INCHES + 1 for names in contests]
    if not heights:
        return
    figure = pyplot.figure(figsize=(12, sum(heights) + 0.8), layout="constrained")
    figure.suptitle(_subtitle(whole), fontsize=9)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if groups:
        for axes, (title, names) in zip(parts[0].subplots(1, len(groups), squeeze=False)[0], groups.items()):
            _bars(axes, title, names, whole, loops)
        parts[0].legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(loops), fontsize=8)
        parts = parts[1:]
    for part, start in zip(parts, range(0, len(series), 3)):
        for axes, name in zip(part.subplots(1, 3)[:], [*list(series)[start:start + 3], None, None]):
            _lines(axes, name, series.get(name), loops, whole)
    for part, names in zip(parts[-len(contests):], contests):
        _ways(part.subplots(), names, whole)
    figure.savefig(path, dpi=110, format="png")
    pyplot.close(figure)


def _subtitle(whole):
    about = whole["machine"]
    return (f"{about['cpu']}, {about['cores']} cores, {about['kernel']}, Python {about['python']}; "
            + ", ".join(f"{name} {probe['version']}" for name, probe in whole["loops"].items()
                        if probe and name not in ("asyncio", report.SUBJECT)))


def _colour(loop, loops):
    if loop in C_SERVERS:
        return "#303030"
    rest = [other for other in loops if other not in COLOURS and other not in C_SERVERS]
    return COLOURS.get(loop) or SPARE_COLOURS[rest.index(loop) % len(SPARE_COLOURS)]


def _bars(axes, title, names, whole, loops):
    """Each row's values relative to stock's (to the first loop's, where stock is not there); less is better."""
    height = 1 / (len(loops) + 1)
    for place, loop in enumerate(loops):
        shares = []
        for name in names:
            results = whole["rows"][name]["results"]
            base = results.get("asyncio") or next(iter(results.values()))
            shares.append(results[loop]["value"] / base["value"] if loop in results and base["value"] else 0)
        bars = axes.barh([row + place * height for row in range(len(names))], [min(share, CEILING) for share in shares],
                         height, label=report.TITLES.get(loop, loop), color=_colour(loop, loops))
        axes.bar_label(bars, [f" {share:.2f}" if share else "" for share in shares], fontsize=5.5)
    axes.set_yticks([row + height * (len(loops) - 1) / 2 for row in range(len(names))], names, fontsize=7)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.axvline(1, color="#808080", linewidth=0.6)
    axes.set_title(f"{title}: relative to stock asyncio, less is better", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _ways(axes, names, whole):
    """Each way relative to its row's first, on a logarithmic scale."""
    places, labels, place = [], [], 0
    for name in names:
        results = whole["rows"][name]["results"]
        first = next(iter(results.values()))["value"]
        for way, one in results.items():
            share = one["value"] / first if first else 0
            kind = way.partition(",")[0]
            bars = axes.barh(place, share, 0.8, color=COLOURS.get(kind, "#808080"))
            axes.bar_label(bars, [f" {share:.2f}" if share else f" {one['value']:.3g}"], fontsize=5.5)
            places.append(place)
            labels.append(f"{name}: {way}")
            place += 1
        place += 0.6
    axes.set_yticks(places, labels, fontsize=6)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log")
    axes.axvline(1, color="#808080", linewidth=0.6)
    axes.set_title(f"{whole['rows'][names[0]]['part']}: relative to each row's first, less is better", fontsize=8)
    axes.tick_params(axis="x", which="both", labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)


def _lines(axes, name, found, loops, whole):
    if not name:
        axes.set_visible(False)
        return
    for loop in (loop for loop in loops if loop in found):
        costs = found[loop]["costs"]
        axes.plot(list(costs), list(costs.values()), marker="o", markersize=3, linewidth=1.2,
                  color=_colour(loop, loops), label=report.TITLES.get(loop, loop))
    unit = next(row["unit"] for row in whole["rows"].values() if row["series"] == name)
    axes.set(xscale="log", yscale="log")
    axes.set_title(f"{name}: {'CPU µs for a byte' if name.startswith('size') else unit}", fontsize=8)
    axes.tick_params(which="both", labelsize=6)
    axes.grid(True, which="major", linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
