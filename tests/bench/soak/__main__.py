"""`python -m tests.bench.soak`: soak, judge, and make the section of the page.

Exit status: 0 every promise holds, 1 one does not, 2 wrong usage.
"""

# ruff: noqa: T201 - a benchmark talks on standard output

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.bench.soak import document
from tests.bench.soak.run import Report, run
from tests.project import REPOSITORY

OUT = REPOSITORY / "build" / "soak"
PAGE = REPOSITORY / "docs" / "PERFORMANCE.md"
DATA = "soak.json"
MINUTES, LEAST_MINUTES = 30.0, 3.0
COMMAND = "python -m tests.bench.soak run"


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        return _publish(options.out)
    if options.minutes < LEAST_MINUTES:
        print(f"--minutes {options.minutes:g}: at least {LEAST_MINUTES:g}, or its legs say nothing", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)  # so that a server that runs is ended too
    command = COMMAND + ("" if options.minutes == MINUTES else f" --minutes {options.minutes:g}")
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), command, options.minutes, _say)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / DATA).write_text(json.dumps(report, ensure_ascii=False) + "\n")
    _say(document.terminal(report))
    _say(f"{report['soak_minutes']:.1f} minutes; see {options.out / DATA}")
    return 0 if all(one["holds"] for one in report["verdicts"]) else 1


def _publish(out: Path) -> int:
    """Only a whole run is worth a page in docs/."""
    report: Report = json.loads((out / DATA).read_text())
    if report["command"] != COMMAND or report["faults"]:
        print(f"{out / DATA} is of `{report['command']}`; the page is made of `{COMMAND}`", file=sys.stderr)
        return 2
    document.publish(report, PAGE)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="load a server, and look at what is left")
    command.add_argument("--minutes", type=float, default=MINUTES, help=f"of load and rests (default: {MINUTES:g})")
    for one in (command, commands.add_parser("document", help="make the section and the plot in docs/")):
        one.add_argument("--out", type=Path, default=OUT, help="where the report is (default: build/soak)")
    return parser


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
