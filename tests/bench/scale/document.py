"""The report as the part of docs/PERFORMANCE.md between its lines. Knows the report's form alone."""

from __future__ import annotations

from pathlib import Path

from tests.bench import pages
from tests.bench.command import Report
from tests.bench.pages import short, spread


def measured(report: Report) -> str:
    """Everything that a run found."""
    lines = [
        pages.origin(report, f"{report['minutes']:.0f} minutes, {report['rounds']} rounds"),
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
        lines.append(f"| {one['what']} | {short(one['found'])} | {short(one['bound'])} | {word} |")
    return "\n".join(lines)


def _requests(report: Report) -> list[str]:
    lines = [
        "| tenants, a key each | CPU a request, µs | to 10 | range | Jubako's part alone, µs | to 10 | range |",
        "|---|---:|---:|---|---:|---:|---|",
    ]
    whole, own = report["requests"]["whole"], report["requests"]["own"]
    for name in whole:
        cells = [f"{short(one['us'])} | {one['ratio']:.2f} | {spread(one)}" for one in (whole[name], own[name])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _streams(report: Report) -> list[str]:
    (few, spent), (many, beside) = report["streams"].items()
    lines = ["| streams at once | " + " | ".join(spent) + " |", "|---|" + "---:|" * len(spent)]
    lines.append(f"| CPU a token, µs, {few} tenants | " + " | ".join(short(one) for one in spent.values()) + " |")
    cells = [short(beside[name]) if name in beside else "" for name in spent]
    lines.append(f"| the same, {many} tenants | " + " | ".join(cells) + " |")
    gaps = [short(report["gaps"][name]["gap_p99_ms"]) for name in spent]
    lines.append("| time between two tokens, p99, ms | " + " | ".join(gaps) + " |")
    text = (
        f"The engine steps every {report['step_ms']:.0f} ms. A step costs {short(report['a_step_us'])} µs whatever "
        f"is in it, and each of its tokens {short(report['a_token_us'])} µs more."
    )
    return [*lines, "", text]


def _files(report: Report) -> list[str]:
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
        lines.append(f"| {name} | " + " | ".join(short(cell) for cell in cells) + " |")
    pauses = {name: report["reload"][name]["gap_max_ms"] for name in ("nothing", "tenants", "keys")}
    text = (
        "The longest pause in any of 32 streams over four seconds, with 10,000 tenants: "
        f"{pauses['nothing']:.0f} ms while nothing changed, {pauses['tenants']:.0f} ms while the tenants were read "
        f"again, {pauses['keys']:.0f} ms while the keys were. No request failed."
    )
    return [*lines, "", text]


def publish(report: Report, page: Path) -> None:
    """Put the measured part into the page, which says where."""
    pages.replace(page, "scale", measured(report))
