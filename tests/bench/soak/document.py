"""The report as a section of docs/PERFORMANCE.md and a plot. Knows the report's form alone."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path

from tests.bench import pages
from tests.bench.overload.measures import quantile
from tests.bench.pages import Data

PICTURE = "soak.png"
COLOURS = {"serving": "#0b6e4f", "engine": "#b3541e", "worker": "#6b5ca5", "vetting": "#888888"}


def section(report: Data) -> str:
    """The part of the page that a run makes."""
    load = [leg["load"] for leg in report["legs"]]
    requests = sum(one["requests"] for one in load)
    probes = sum(len(leg["probes"]) for leg in report["legs"])
    ends = Counter[str]()
    for one in load:
        ends.update(one["ends"])
    told = ", ".join(f"{count:,} {end}" for end, count in ends.most_common())
    lines = [
        pages.origin(report, f"{report['soak_minutes']:.0f} minutes after warming up"),
        "",
        f"{requests:,} requests of the load ({told}), {probes:,} probes, {len(report['legs'])} legs, each with a rest.",
        "",
        f"![Memory at rest and the probe's times]({PICTURE})",
        "",
        pages.verdicts(report),
        "",
        _rests(report),
    ]
    return "\n".join(lines)


def _rests(report: Data) -> str:
    """The first, the middle and the last rest of each process."""
    rests = report["rests"]
    chosen = {"first": rests[0], "middle": rests[len(rests) // 2], "last": rests[-1]}
    head = ["at rest", *(f"{what}, {name}" for what in ("MiB", "descriptors", "threads") for name in chosen)]
    rows = []
    for role in rests[0]["processes"]:
        seen = [rest["processes"].get(role, {}) for rest in chosen.values()]
        rows.append(
            [
                role,
                *(f"{one.get('own_bytes', 0) / 2**20:.0f}" for one in seen),
                *(str(one.get(what, "-")) for what in ("descriptors", "threads") for one in seen),
            ]
        )
    tasks = [sum(rest["tasks"].values()) for rest in chosen.values()]
    told = f"Tasks of the event loop: {tasks[0]}, {tasks[1]} and {tasks[2]}."
    return f"{pages.table(head, rows)}\n\n{told}"


def publish(report: Data, page: Path) -> None:
    """Put the section into the page, which says where, and the plot beside it."""
    pages.replace(page, "soak", section(report))
    draw(report, page.with_name(PICTURE))


def draw(report: Data, file: Path) -> None:
    """Memory above, the probe's total times below, over the minutes of the run."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    began = report["rests"][0]["at"]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.4, 5.0), dpi=120, layout="constrained")
        memory, times = figure.subplots(2, sharex=True)
        for role, colour in COLOURS.items():
            seen = [one for one in report["rests"] if role in one["processes"]]
            if seen:
                base = seen[0]["processes"][role]["own_bytes"]
                grown = [(one["processes"][role]["own_bytes"] - base) / 2**20 for one in seen]
                memory.plot(_minutes(seen, began), grown, label=f"{role}, {base / 2**20:.0f}", color=colour, marker="o")
        memory.set_ylabel("at rest, MiB over the first rest's")
        memory.legend(frameon=False)
        legs = [leg for leg in report["legs"] if leg["probes"]]
        middles = [(statistics.fmean((leg["begun"], leg["ended"])) - began) / 60 for leg in legs]
        for share, style in ((0.5, "-"), (0.99, "--")):
            found = [1000 * (quantile([one["total"] for one in leg["probes"]], share) or 0.0) for leg in legs]
            times.plot(middles, found, style, label=f"p{share * 100:.0f}", color=COLOURS["serving"], marker="o")
        times.set_ylabel("probe, total ms")
        times.set_xlabel("minutes")
        times.legend(frameon=False)
        for axes in (memory, times):
            axes.grid(visible=True, axis="y", alpha=0.3)
        times.set_ylim(bottom=0)
        figure.savefig(file, metadata={"Software": None})


def _minutes(seen: list[Data], began: float) -> list[float]:
    return [(one["at"] - began) / 60 for one in seen]
