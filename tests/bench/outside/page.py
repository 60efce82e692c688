"""The report as a table for the terminal, and as a section of docs/PERFORMANCE.md. Knows the report's form alone."""

from __future__ import annotations

from pathlib import Path

from tests.bench import pages
from tests.bench.command import Report
from tests.bench.outside.guidellm import BUSY, PACE
from tests.bench.speed.scenarios import FIRST, RATE, TOKEN_CPU

SHOWN = (
    (TOKEN_CPU, "CPU of the server a token, µs"),
    (BUSY, "streams at once, mean"),
    (RATE, "tokens/s"),
    (FIRST, "TTFT p50, ms"),
    (PACE, "ITL p50, ms"),
)


def _groups(report: Report) -> pages.Groups:
    return [(load["what"], load["summary"]) for load in report["loads"].values()]


def table(report: Report) -> str:
    """For the terminal."""
    return "\n".join(pages.terminal_compared(_groups(report), SHOWN))


def section(report: Report) -> str:
    """For the page. The tool has a Python of its own, so that of the report is not told."""
    how = f"{report['minutes']:.0f} minutes, {report['rounds']} rounds"
    return "\n".join([pages.origin(report, how, python=False), "", *pages.compared("load", _groups(report), SHOWN)])


def publish(report: Report, page: Path) -> None:
    """Put the section into the page, which says where."""
    pages.replace(page, "outside", section(report))
