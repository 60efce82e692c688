"""`python -m tests.bench.speed`: measure, judge, and make the page.

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

from tests.bench.speed import document
from tests.bench.speed.run import Report, run
from tests.bench.speed.scenarios import CHECKED, CHECKED_AT_MOST, MODELS, TOKEN_CPU
from tests.project import REPOSITORY

OUT = REPOSITORY / "build" / "speed"
PAGE = REPOSITORY / "docs" / "PERFORMANCE.md"
DATA = "speed.json"
ROUNDS, CHECK_ROUNDS = 5, 3
COMMAND = "python -m tests.bench.speed run"


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        return _publish(options.out)
    signal.signal(signal.SIGTERM, _leave)  # so that servers that run are ended too
    if options.command == "check":
        return _check()
    only = options.only.split(",") if options.only else []
    command = COMMAND + (f" --only {options.only}" if only else "") + _rounds(options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), command, options.rounds, _say, only=only)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / DATA).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    _say(document.table(report))
    _say(f"{report['minutes']:.1f} minutes; see {options.out / DATA}")
    return 0 if not report["faults"] and all(one["holds"] for one in report["verdicts"]) else 1


def _check() -> int:
    """One scenario, a few rounds: the CPU of a streamed token, beside vLLM's own server, against its budget."""
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), "make bench-check", CHECK_ROUNDS, _say, only=[CHECKED])
    if report["faults"]:
        return 1
    found = report["scenarios"][CHECKED]["summary"][TOKEN_CPU]
    within = found["ratio"] <= CHECKED_AT_MOST
    _say(document.table(report))
    _say(f"{'within' if within else 'OVER'} the budget: {found['ratio']:.3f}, at most {CHECKED_AT_MOST:.2f}")
    return 0 if within else 1


def _publish(out: Path) -> int:
    """Only a whole run is worth a page in docs/."""
    report: Report = json.loads((out / DATA).read_text())
    if report["command"] != COMMAND or report["faults"]:
        print(f"{out / DATA} is of `{report['command']}`; the page is made of `{COMMAND}`", file=sys.stderr)
        return 2
    document.publish(report, PAGE)
    return 0


def _rounds(rounds: int) -> str:
    return "" if rounds == ROUNDS else f" --rounds {rounds}"


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speed", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="every scenario, on both servers in turn")
    command.add_argument("--only", default="", help="names of scenarios, with commas; " + ", ".join(_names()))
    command.add_argument("--rounds", type=int, default=ROUNDS)
    commands.add_parser("check", help=f"{CHECKED} alone, against its budget")
    for one in (command, commands.add_parser("document", help="make the page and the plot in docs/")):
        one.add_argument("--out", type=Path, default=OUT, help="where the report is (default: build/speed)")
    return parser


def _names() -> list[str]:
    return [one.name for scenarios in MODELS.values() for one in scenarios]


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
