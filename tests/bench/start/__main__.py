"""`python -m tests.bench.start`: measure starts, judge, and make the page's part.

Exit status: 0 the promise holds, 1 it does not, 2 wrong usage.
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

from tests.bench.start import document
from tests.bench.start.run import Report, run
from tests.project import REPOSITORY

OUT = REPOSITORY / "build" / "start"
PAGE = REPOSITORY / "docs" / "PERFORMANCE.md"
DATA = "start.json"
ROUNDS = 5
COMMAND = "python -m tests.bench.start run"


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        report: Report = json.loads((options.out / DATA).read_text())
        document.publish(report, PAGE)
        return 0
    signal.signal(signal.SIGTERM, _leave)  # so that servers that run are ended too
    command = COMMAND + ("" if options.rounds == ROUNDS else f" --rounds {options.rounds}")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        report = run(Path(folder), command, options.rounds, _say)
    (options.out / DATA).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    _say(document.table(report))
    _say(f"{report['minutes']:.1f} minutes; see {options.out / DATA}")
    return 0 if report["verdict"]["holds"] else 1


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.start", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="both servers, started in turn")
    command.add_argument("--rounds", type=int, default=ROUNDS)
    for one in (command, commands.add_parser("document", help="make the page's part and the plot in docs/")):
        one.add_argument("--out", type=Path, default=OUT, help="where the report is (default: build/start)")
    return parser


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
