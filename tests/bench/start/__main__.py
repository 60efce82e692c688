"""`python -m tests.bench.start`: measure starts, judge, and make the page's part.

Exit status: 0 the promise holds, 1 it does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse

from tests.bench.command import Benchmark, say, start
from tests.bench.start import document
from tests.bench.start.run import run

START = Benchmark("start")
ROUNDS = 5


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        return START.publish(options.out, document.publish)
    command = START.command + ("" if options.rounds == ROUNDS else f" --rounds {options.rounds}")
    report = START.measure(lambda folder: run(folder, command, options.rounds, say), options.out, beside=True)
    say(document.table(report))
    say(f"{report['minutes']:.1f} minutes; see {START.file(options.out)}")
    return 0 if report["verdict"]["holds"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = START.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="both servers, started in turn")
    command.add_argument("--rounds", type=int, default=ROUNDS)
    START.add_out(command, commands.add_parser("document", help="make the page's part and the plot in docs/"))
    return parser


if __name__ == "__main__":
    start(main)
