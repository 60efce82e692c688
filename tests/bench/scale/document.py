"""The report as the part of docs/PERFORMANCE.md between its lines. Knows the report's form alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OUTSIDE = ("<!-- scale: begin -->", "<!-- scale: end -->")


def measured(report: dict[str, Any]) -> str:
    """Everything that a run found."""
    machine = report["machine"]
    lines = [
        OUTSIDE[0],
        f"`{report['command']}`, {report['date']}, {report['minutes']:.0f} minutes, {report['rounds']} rounds; "
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB, Python {machine['python']}; "
        + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
        + ".",
        "",
        *_requests(report),
        "",
        *_streams(report),
        "",
        *_files(report),
        "",
        "| promise | found | at most | |",
        "|---|---:|---:|---|",
    ]
    for one in report["verdicts"]:
        word = "holds" if one["holds"] else "**missed**"
        lines.append(f"| {one['what']} | {_number(one['found'])} | {_number(one['bound'])} | {word} |")
    return "\n".join([*lines, OUTSIDE[1]])


def _requests(report: dict[str, Any]) -> list[str]:
    lines = [
        "| tenants, a key each | CPU a request, µs | to 10 | range | Jubako's part alone, µs | to 10 | range |",
        "|---|---:|---:|---|---:|---:|---|",
    ]
    whole, own = report["requests"]["whole"], report["requests"]["own"]
    for name in whole:
        cells = [f"{_number(one['us'])} | {one['ratio']:.2f} | {_range(one)}" for one in (whole[name], own[name])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _streams(report: dict[str, Any]) -> list[str]:
    (few, spent), (many, beside) = report["streams"].items()
    lines = ["| streams at once | " + " | ".join(spent) + " |", "|---|" + "---:|" * len(spent)]
    lines.append(f"| CPU a token, µs, {few} tenants | " + " | ".join(_number(one) for one in spent.values()) + " |")
    cells = [_number(beside[name]) if name in beside else "" for name in spent]
    lines.append(f"| the same, {many} tenants | " + " | ".join(cells) + " |")
    gaps = [_number(report["gaps"][name]["gap_p99_ms"]) for name in spent]
    lines.append("| time between two tokens, p99, ms | " + " | ".join(gaps) + " |")
    text = (
        f"The engine steps every {report['step_ms']:.0f} ms. A step costs {_number(report['a_step_us'])} µs whatever "
        f"is in it, and each of its tokens {_number(report['a_token_us'])} µs more."
    )
    return [*lines, "", text]


def _files(report: dict[str, Any]) -> list[str]:
    titles = ["files, KiB", "read at the start, s", "memory kept, MiB", "keys read again, s", "tenants read again, s"]
    titles += ["metrics page, KiB", "scraped in, ms"]
    lines = ["| tenants | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for name, one in report["loading"].items():
        page = report["metrics"][name]
        cells = [
            (one["tenants_file_bytes"] + one["keys_file_bytes"]) / 1024,
            one["load_seconds"],
            one["kept_bytes"] / 2**20,
            one["keys_reload_seconds"],
            one["tenants_reload_seconds"],
            page["bytes"] / 1024,
            page["seconds"] * 1e3,
        ]
        lines.append(f"| {name} | " + " | ".join(_number(cell) for cell in cells) + " |")
    pauses = {name: report["reload"][name]["gap_max_ms"] for name in ("nothing", "tenants", "keys")}
    text = (
        "The longest pause in any of 32 streams over four seconds, with 10,000 tenants: "
        f"{pauses['nothing']:.0f} ms while nothing changed, {pauses['tenants']:.0f} ms while the tenants were read "
        f"again, {pauses['keys']:.0f} ms while the keys were. No request failed."
    )
    return [*lines, "", text]


def _range(one: dict[str, float]) -> str:
    return f"{one['least']:.2f}-{one['most']:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def publish(report: dict[str, Any], page: Path) -> None:
    """Put the measured part into the page, which says where."""
    text = page.read_text()
    before, found, rest = text.partition(OUTSIDE[0])
    _, ended, after = rest.partition(OUTSIDE[1])
    if not found or not ended:
        raise RuntimeError(f"{page}: no lines {OUTSIDE[0]} and {OUTSIDE[1]}")
    page.write_text(before + measured(report) + after)
