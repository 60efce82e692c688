"""`python -m tests.bench.soak`: soak, judge, and make the section of the page.

Exit status: 0 every promise holds, 1 one does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse

from tests.bench.command import Benchmark, refuse, say, start
from tests.bench.pages import terminal_verdicts
from tests.bench.soak import document
from tests.bench.soak.run import run

SOAK = Benchmark("soak")
MINUTES, LEAST_MINUTES = 30.0, 3.0


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "document":
        return SOAK.publish(options.out, document.publish, worth=SOAK.is_sound)
    if options.minutes < LEAST_MINUTES:
        return refuse(f"--minutes {options.minutes:g}: at least {LEAST_MINUTES:g}, or its legs say nothing")
    command = SOAK.command + ("" if options.minutes == MINUTES else f" --minutes {options.minutes:g}")
    report = SOAK.measure(lambda folder: run(folder, command, options.minutes, say), options.out, indent=None)
    say(terminal_verdicts(report))
    say(f"{report['soak_minutes']:.1f} minutes; see {SOAK.file(options.out)}")
    return 0 if all(one["holds"] for one in report["verdicts"]) else 1


def _parser() -> argparse.ArgumentParser:
    parser = SOAK.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="load a server, and look at what is left")
    command.add_argument("--minutes", type=float, default=MINUTES, help=f"of load and rests (default: {MINUTES:g})")
    SOAK.add_out(command, commands.add_parser("document", help="make the section and the plot in docs/"))
    return parser


if __name__ == "__main__":
    start(main)
