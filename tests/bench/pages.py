"""Reports as text, whatever was measured: tables, and the parts of a page that a run makes. It knows no benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Data = Mapping[str, Any]
Shown = Sequence[tuple[str, str]]
"""Figures with their titles."""
Groups = Iterable[tuple[str, Data]]
"""What a load is called, and the summary of each figure in it."""


def replace(page: Path, name: str, text: str) -> None:
    """Put the text where the page has the lines of that name; what is around them is written by people."""
    begin, end = marks(name)
    before, found, rest = page.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise RuntimeError(f"{page}: no lines {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def marks(name: str) -> tuple[str, str]:
    """The lines around a part of a page."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def origin(report: Data, how: str, *, python: bool = True) -> str:
    """Which command, when, on what; `how` says how long and how often."""
    machine = report["machine"]
    interpreter = f", Python {machine['python']}" if python else ""
    return (
        f"`{report['command']}`, {report['date']}, {how}; {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB{interpreter}; {versions(report)}."
    )


def versions(report: Data) -> str:
    """Of what was measured."""
    return ", ".join(f"{name} {version}" for name, version in report["versions"].items())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def verdicts(report: Data) -> str:
    """Every promise and whether it holds, as a table."""
    rows = [[one["promise"], one["measured"], "yes" if one["holds"] else "**no**"] for one in report["verdicts"]]
    return table(["promise", "measured", "holds"], rows)


def terminal_verdicts(report: Data) -> str:
    """The same for who ran it."""
    return "\n".join(
        f"{'holds' if one['holds'] else 'FAILS':<6} {one['promise']}: {one['measured']}" for one in report["verdicts"]
    )


def compared(what: str, groups: Groups, shown: Shown) -> list[str]:
    """Both servers' medians, the ratio's median and range, as lines of a table."""
    lines = [f"| {what} | figure | vLLM | Jubako | ratio | range |", "|---|---|---:|---:|---:|---|"]
    for label, summary in groups:
        found = [(title, summary[figure]) for figure, title in shown if figure in summary]
        for number, (title, one) in enumerate(found):
            lines.append(
                f"| {'' if number else label} | {title} | {short(one['vllm'])} | {short(one['jubako'])} "
                f"| {one['ratio']:.2f} | {spread(one)} |"
            )
    return lines


def terminal_compared(groups: Groups, shown: Shown) -> list[str]:
    """The same for who ran it."""
    lines = [f"{'':40} {'vLLM':>10} {'Jubako':>10} {'ratio':>7}  range"]
    for label, summary in groups:
        lines.append(label)
        lines += [
            f"    {title:36} {one['vllm']:10.2f} {one['jubako']:10.2f} {one['ratio']:7.3f}"
            f"  {one['least']:.3f} to {one['most']:.3f}"
            for figure, title in shown
            if (one := summary.get(figure)) is not None
        ]
    return lines


def spread(one: Mapping[str, float]) -> str:
    """The range of a ratio."""
    return f"{one['least']:.2f}-{one['most']:.2f}"


def short(value: float) -> str:
    """Three digits, or as many as there are before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
