"""`python -m tests.bench.overload`: measure, judge, and make the page.

Exit status: 0 every promise holds, 1 one does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.bench.command import Benchmark, Report, say, start
from tests.bench.overload import document, plot
from tests.bench.overload.plan import QUICK, WHOLE
from tests.bench.overload.run import PARTS, SERVERS, measure, with_part
from tests.bench.pages import terminal_verdicts
from tests.project import REPOSITORY

OVERLOAD = Benchmark("overload")
PAGE, PICTURE = "OVERLOAD.md", "overload.png"


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        return OVERLOAD.publish(options.out, write, options.to, worth=OVERLOAD.is_whole)
    options.out.mkdir(parents=True, exist_ok=True)
    part = options.command if options.command in PARTS else None
    whole = _whole(options.out) if part and not options.quick else None
    for old in options.out.glob("records.jsonl.gz"):
        old.unlink()
    only = "jubako" if part else options.only
    sweeps = (only,) if only else tuple(SERVERS)
    report = measure(
        QUICK if options.quick else WHOLE,
        options.out,
        _command(options),
        sweeps=sweeps,
        part=part,
    )
    if whole is not None and part is not None:
        report = with_part(whole, report, part)
    write(report, options.out)
    say(terminal_verdicts(report))
    say(f"{report['minutes']:.1f} minutes; see {options.out / PAGE}")
    return 0 if all(one["holds"] for one in report["verdicts"]) else 1


def write(report: Report, folder: Path) -> None:
    """The data, and what is made of it."""
    OVERLOAD.write(report, folder)
    (folder / PAGE).write_text(document.page(report))
    plot.draw(report, folder / PICTURE)


def _whole(out: Path) -> Report | None:
    """The whole run that is there, of which a part is measured anew."""
    file = OVERLOAD.file(out)
    report: Report | None = json.loads(file.read_text()) if file.exists() else None
    return report if report is not None and OVERLOAD.is_whole(report) else None


def _command(options: argparse.Namespace) -> str:
    """How the run was started, without the machine's paths."""
    only = f" --only {options.only}" if getattr(options, "only", None) else ""
    return f"python -m tests.bench.overload {options.command}{' --quick' if options.quick else ''}{only}"


def _parser() -> argparse.ArgumentParser:
    parser = OVERLOAD.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="both servers: saturation, sweep, Retry-After, fairness")
    run.add_argument("--only", choices=list(SERVERS), help="one server; what needs the other does not hold")
    fairness = commands.add_parser("fairness", help="fairness alone; takes its place in a whole run that is in --out")
    retry = commands.add_parser("retry", help="Retry-After alone, likewise")
    for one in (run, fairness, retry):
        one.add_argument("--quick", action="store_true", help="a smoke run of the harness; its numbers say nothing")
    page = commands.add_parser("document", help="make the page and the plot in docs/ from the last report")
    page.add_argument("--to", type=Path, default=REPOSITORY / "docs", help="where they go (default: docs)")
    OVERLOAD.add_out(run, fairness, retry, page)
    return parser


if __name__ == "__main__":
    start(main)
