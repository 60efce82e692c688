"""`python -m tests.bench.overload`: measure, judge, and make the page.

Exit status: 0 every promise holds, 1 one does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType

import click

from tests.bench.overload import document, plot
from tests.bench.overload.bench import say
from tests.bench.overload.plan import QUICK, WHOLE
from tests.bench.overload.run import SERVERS, Report, measure
from tests.project import REPOSITORY

OUT = REPOSITORY / "build" / "overload"
COMMAND = "python -m tests.bench.overload run"
DATA, PAGE, PICTURE = "overload.json", "OVERLOAD.md", "overload.png"


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        return _publish(options.out, options.to)
    signal.signal(signal.SIGTERM, _leave)  # so that a server that runs is ended too
    options.out.mkdir(parents=True, exist_ok=True)
    for old in options.out.glob("records.jsonl.gz"):
        old.unlink()
    only = "jubako" if options.command == "fairness" else options.only
    sweeps = (only,) if only else tuple(SERVERS)
    report = measure(
        QUICK if options.quick else WHOLE,
        options.out,
        _command(options),
        sweeps=sweeps,
        only_fairness=options.command == "fairness",
    )
    write(report, options.out)
    say(document.terminal(report))
    say(f"{report['minutes']:.1f} minutes; see {options.out / PAGE}")
    return 0 if all(one["holds"] for one in report["verdicts"]) else 1


def write(report: Report, folder: Path) -> None:
    """The data, and what is made of it."""
    (folder / DATA).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    (folder / PAGE).write_text(document.page(report))
    plot.draw(report, folder / PICTURE)


def _publish(source: Path, target: Path) -> int:
    """Only a whole run is worth a page in docs/."""
    report = json.loads((source / DATA).read_text())
    if report["command"] != COMMAND:
        click.echo(f"{source / DATA} is of `{report['command']}`; the page is made of `{COMMAND}`", err=True)
        return 2
    write(report, target)
    return 0


def _command(options: argparse.Namespace) -> str:
    """How the run was started, without the machine's paths."""
    only = f" --only {options.only}" if getattr(options, "only", None) else ""
    return f"python -m tests.bench.overload {options.command}{' --quick' if options.quick else ''}{only}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overload", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("run", "both servers: saturation, sweep, Retry-After, fairness"),
        ("fairness", "Jubako alone: saturation and fairness"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("--quick", action="store_true", help="a smoke run of the harness; its numbers say nothing")
        command.add_argument("--out", type=Path, default=OUT, help="where the report goes (default: build/overload)")
        if name == "run":
            command.add_argument("--only", choices=list(SERVERS), help="one server; what needs the other does not hold")
    command = commands.add_parser("document", help="make the page and the plot in docs/ from the last report")
    command.add_argument("--out", type=Path, default=OUT, help="where the report is (default: build/overload)")
    command.add_argument("--to", type=Path, default=REPOSITORY / "docs", help="where they go (default: docs)")
    return parser


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
