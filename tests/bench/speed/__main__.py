"""`python -m tests.bench.speed`: measure, judge, and make the page.

Exit status: 0 every promise holds, 1 one does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.bench.command import Benchmark, say, start
from tests.bench.speed import document
from tests.bench.speed.run import run
from tests.bench.speed.scenarios import CHECKED, CHECKED_AT_MOST, MODELS, TOKEN_CPU

SPEED = Benchmark("speed")
ROUNDS, CHECK_ROUNDS = 5, 3


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        return SPEED.publish(options.out, document.publish, worth=SPEED.is_sound)
    if options.command == "check":
        return _check()
    command = SPEED.command + (f" --only {options.only}" if options.only else "")
    command += "" if options.rounds == ROUNDS else f" --rounds {options.rounds}"
    only = options.only.split(",") if options.only else []
    report = SPEED.measure(lambda folder: run(folder, command, options.rounds, say, only=only), options.out)
    say(document.table(report))
    say(f"{report['minutes']:.1f} minutes; see {SPEED.file(options.out)}")
    return 0 if not report["faults"] and all(one["holds"] for one in report["verdicts"]) else 1


def _check() -> int:
    """One scenario, a few rounds: the CPU of a streamed token, beside vLLM's own server, against its budget."""
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), "make bench-check", CHECK_ROUNDS, say, only=[CHECKED])
    if report["faults"]:
        return 1
    found = report["scenarios"][CHECKED]["summary"][TOKEN_CPU]
    within = found["ratio"] <= CHECKED_AT_MOST
    say(document.table(report))
    say(f"{'within' if within else 'OVER'} the budget: {found['ratio']:.3f}, at most {CHECKED_AT_MOST:.2f}")
    return 0 if within else 1


def _parser() -> argparse.ArgumentParser:
    parser = SPEED.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="every scenario, on both servers in turn")
    names = [one.name for scenarios in MODELS.values() for one in scenarios]
    command.add_argument("--only", default="", help="names of scenarios, with commas; " + ", ".join(names))
    command.add_argument("--rounds", type=int, default=ROUNDS)
    commands.add_parser("check", help=f"{CHECKED} alone, against its budget")
    SPEED.add_out(command, commands.add_parser("document", help="make the page and the plot in docs/"))
    return parser


if __name__ == "__main__":
    start(main)
