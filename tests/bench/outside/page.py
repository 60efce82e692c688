"""The report as a table for the terminal, and as a section of docs/PERFORMANCE.md. Knows the report's form alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.outside.guidellm import BUSY, PACE
from tests.bench.speed.scenarios import FIRST, RATE, TOKEN_CPU

Report = dict[str, Any]
SHOWN = (
    (TOKEN_CPU, "CPU of the server a token, µs"),
    (BUSY, "streams at once, mean"),
    (RATE, "tokens/s"),
    (FIRST, "TTFT p50, ms"),
    (PACE, "ITL p50, ms"),
)
BEGIN, END = "<!-- outside: begin -->", "<!-- outside: end -->"


def rows(report: Report) -> list[tuple[str, str, dict[str, float]]]:
    """Load, figure, and what was found."""
    return [
        (load["what"], title, load["summary"][figure]) for load in report["loads"].values() for figure, title in SHOWN
    ]


def table(report: Report) -> str:
    """For the terminal."""
    lines = [f"{'':34} {'vLLM':>10} {'Jubako':>10} {'ratio':>7}  range"]
    said = ""
    for what, title, found in rows(report):
        if what != said:
            lines.append(said := what)
        lines.append(
            f"    {title:30} {found['vllm']:10.2f} {found['jubako']:10.2f} {found['ratio']:7.3f}"
            f"  {found['least']:.3f} to {found['most']:.3f}"
        )
    return "\n".join(lines)


def section(report: Report) -> str:
    """For the page."""
    machine, versions = report["machine"], report["versions"]
    lines = [
        BEGIN,
        f"`{report['command']}`, {report['date']}, {report['minutes']:.0f} minutes, {report['rounds']} rounds; "
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
        "",
        "| load | figure | vLLM | Jubako | ratio | range |",
        "|---|---|---:|---:|---:|---|",
    ]
    said = ""
    for what, title, found in rows(report):
        lines.append(
            f"| {what if what != said else ''} | {title} | {_number(found['vllm'])} | {_number(found['jubako'])} "
            f"| {found['ratio']:.2f} | {found['least']:.2f}-{found['most']:.2f} |"
        )
        said = what
    return "\n".join([*lines, END])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def publish(report: Report, page: Path) -> None:
    """Put the section into the page, which says where."""
    before, found, rest = page.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise RuntimeError(f"{page}: no lines {BEGIN} and {END}")
    page.write_text(before + section(report) + after)
