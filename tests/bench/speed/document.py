"""The report as text: a table for the terminal, and the page in docs/ with its plot. Knows the report's form alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench import pages
from tests.bench.command import Report
from tests.bench.speed.scenarios import FIRST, PACE, RATE, REQUEST_CPU, TOKEN_CPU

SHOWN = (
    (TOKEN_CPU, "CPU a token, µs"),
    (REQUEST_CPU, "CPU a request, ms"),
    (RATE, "tokens/s"),
    (FIRST, "TTFT p50, ms"),
    (PACE, "TPOT p50, ms"),
)
TAILS = ("ttft_p95_ms", "ttft_p99_ms", "tpot_p95_ms", "tpot_p99_ms")
PICTURE = "performance.png"


def table(report: Report) -> str:
    """One line a scenario and figure: both medians, the ratio's median and range."""
    return "\n".join([*pages.terminal_compared(_groups(report), SHOWN), *map(_verdict, report["verdicts"])])


def _groups(report: Report) -> pages.Groups:
    return [(f"{name}: {one['what']}", one["summary"]) for name, one in report["scenarios"].items()]


def _verdict(one: dict[str, Any]) -> str:
    sign = "≥" if one["figure"] == RATE else "≤"
    word = "holds" if one["holds"] else "MISSED"
    return f"{word}: {one['scenario']} {one['figure']} {one['ratio']:.3f}, promised {sign} {one['bound']:.2f}"


def measured(report: Report) -> str:
    """The part of the page that a run makes."""
    lines = [
        pages.origin(report, f"{report['minutes']:.0f} minutes, {report['rounds']} rounds"),
        "",
        f"![CPU of the serving process per token]({PICTURE})",
        "",
        *pages.compared("scenario", _groups(report), SHOWN),
    ]
    lines += ["", "The tails, in milliseconds, vLLM and Jubako:", "", *_tails(report), "", *_memory(report), ""]
    lines += ["| promise | ratio | bound | |", "|---|---:|---:|---|"]
    for one in report["verdicts"]:
        sign, word = ("≥" if one["figure"] == RATE else "≤"), ("holds" if one["holds"] else "**missed**")
        lines.append(f"| {one['scenario']} {one['figure']} | {one['ratio']:.3f} | {sign} {one['bound']:.2f} | {word} |")
    return "\n".join(lines)


def _tails(report: Report) -> list[str]:
    lines = ["| scenario | " + " | ".join(one.replace("_", " ").removesuffix(" ms") for one in TAILS) + " |"]
    lines.append("|---|" + "---:|" * len(TAILS))
    for name, scenario in report["scenarios"].items():
        found = [scenario["summary"].get(one) for one in TAILS]
        if found[0] is not None:
            cells = [f"{pages.short(one['vllm'])}, {pages.short(one['jubako'])}" for one in found if one is not None]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _memory(report: Report) -> list[str]:
    lines = ["Peak memory of the serving process, and what it costs to be there:", ""]
    for name, peak in report["peak_bytes"].items():
        vllm, jubako = peak["vllm"], peak["jubako"]
        lines.append(
            f"- {name} model: vLLM {vllm / 2**20:.0f} MiB, Jubako {jubako / 2**20:.0f} MiB, ratio {jubako / vllm:.2f}"
        )
    for name, idle in report["idle_cpu_ms_per_second"].items():
        vllm, jubako = idle["vllm"], idle["jubako"]
        lines.append(f"- CPU with nothing to do, {name}: vLLM {vllm:.1f} ms a second, Jubako {jubako:.1f}")
    return lines


def publish(report: Report, page: Path) -> None:
    """Put the measured part into the page, which says where, and the plot beside it."""
    pages.replace(page, "measured", measured(report))
    draw(report, page.with_name(PICTURE))


def draw(report: Report, path: Path) -> None:
    """Ratio of CPU per token in each scenario, with the range over the rounds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(report["scenarios"])
    found = [report["scenarios"][name]["summary"][TOKEN_CPU] for name in names]
    middle = [one["ratio"] for one in found]
    reach = [
        [one["ratio"] - one["least"] for one in found],
        [one["most"] - one["ratio"] for one in found],
    ]
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(names) + 1.5))
    axes.barh(names, middle, xerr=reach, color="#7a9e7e", ecolor="#333333", capsize=3)
    axes.axvline(1, color="#b5443c", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("CPU of the serving process per token, Jubako / vLLM's own server (median, range over rounds)")
    axes.set_xlim(0, max(1.1, *(one["most"] for one in found)) * 1.05)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
