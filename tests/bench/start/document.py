"""The report as text: a table for the terminal, and the page's part in docs/ with its plot. Knows the report's form."""

from __future__ import annotations

from pathlib import Path

from tests.bench import pages
from tests.bench.command import Report

PICTURE = "start.png"
SHOWN = (
    ("ready_seconds", "ready, s", 1.0),
    ("answer_seconds", "first answer, s", 1.0),
    ("cpu_seconds", "CPU of all processes until ready, s", 1.0),
    ("resident_bytes", "memory of all processes (PSS), MiB", 2.0**20),
)
PHASES = {
    "command": ("command", "#d9c79e"),
    "settings": ("settings", "#c9a66b"),
    "verification": ("verification", "#b5443c"),
    "worker": ("worker, BentoML", "#e0a458"),
    "engine_imports": ("gate, books, vLLM's imports", "#7a9e7e"),
    "engine_configuration": ("engine's configuration", "#a9c5a0"),
    "engine_process": ("engine process", "#5b7b9a"),
    "engine_loading": ("computing process, weights", "#8fa9bf"),
    "serving": ("serving objects", "#9a86a4"),
    "smoke": ("smoke prompts", "#4d4d4d"),
}
VLLM_NOTE = (
    "vLLM's imports are in its configuration, its serving objects in its last phase: from outside no more can be told"
)


def table(report: Report) -> str:
    """One line a figure: both medians, the ratio's median and range; then the verdict."""
    lines = [f"{'':38} {'vLLM':>8} {'Jubako':>8} {'ratio':>6}  range"]
    for figure, title, unit in SHOWN:
        found = report["summary"][figure]
        lines.append(
            f"{title:38} {found['vllm'] / unit:8.1f} {found['jubako'] / unit:8.1f} {found['ratio']:6.2f}"
            f"  {found['least']:.2f} to {found['most']:.2f}"
        )
    for phase, seconds in report["phases"]["jubako"].items():
        lines.append(f"    {phase:34} {report['phases']['vllm'].get(phase, 0.0):8.1f} {seconds:8.1f}")
    verdict = report["verdict"]
    word = "holds" if verdict["holds"] else "MISSED"
    return "\n".join([*lines, f"{word}: {verdict['figure']} {verdict['ratio']:.3f}, promised ≤ {verdict['bound']:.2f}"])


def measured(report: Report) -> str:
    """The part of the page that a run makes."""
    verdict = report["verdict"]
    how = f"{report['minutes']:.0f} minutes, {len(report['rounds'])} rounds, each server alone in turn"
    lines = [
        pages.origin(report, how),
        "",
        f"![Seconds from the first process to ready, by phase]({PICTURE})",
        "",
        "| until | vLLM | Jubako | ratio | range |",
        "|---|---:|---:|---:|---|",
    ]
    for figure, title, unit in SHOWN:
        found = report["summary"][figure]
        lines.append(
            f"| {title} | {found['vllm'] / unit:,.1f} | {found['jubako'] / unit:,.1f} "
            f"| {found['ratio']:.2f} | {pages.spread(found)} |"
        )
    lines += ["", "| phase of Jubako's start | median seconds |", "|---|---:|"]
    lines += [f"| {PHASES[phase][0]} | {seconds:.2f} |" for phase, seconds in report["phases"]["jubako"].items()]
    word = "holds" if verdict["holds"] else "**missed**"
    lines += ["", f"Promised: ready after at most {verdict['bound']:.2f} times vLLM's time; {word}."]
    return "\n".join(lines)


def publish(report: Report, page: Path) -> None:
    """Put the measured part into the page, which says where, and the plot beside it."""
    pages.replace(page, "start", measured(report))
    draw(report, page.with_name(PICTURE))


def draw(report: Report, path: Path) -> None:
    """A bar for each server, its phases one after the other."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = ["jubako", "vllm"]
    figure, axes = plt.subplots(figsize=(9, 3.4))
    left = dict.fromkeys(names, 0.0)
    for phase, (title, colour) in PHASES.items():
        widths = [report["phases"][name].get(phase, 0.0) for name in names]
        axes.barh(names, widths, left=[left[name] for name in names], color=colour, label=title)
        left = {name: left[name] + width for name, width in zip(names, widths, strict=True)}
    axes.set_yticks(range(len(names)), ["Jubako", "vLLM's own server"])
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds from the first process to ready (medians)\n{VLLM_NOTE}", fontsize=8)
    axes.legend(ncols=4, fontsize=7, loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
