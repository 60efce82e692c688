"""`python -m tests.bench.scale`: measure, judge, and make the part of the page.

Exit status: 0 every promise holds, 1 one does not, 2 wrong usage.
"""

from __future__ import annotations

from tests.bench.command import Benchmark, say, start
from tests.bench.scale import document
from tests.bench.scale.run import run

SCALE = Benchmark("scale")


def main(arguments: list[str]) -> int:
    """Run one command."""
    parser = SCALE.parser(__doc__)
    parser.add_argument("command", choices=["run", "document"])
    SCALE.add_out(parser)
    options = parser.parse_args(arguments)
    if options.command == "document":
        return SCALE.publish(options.out, document.publish)
    report = SCALE.measure(lambda folder: run(folder, SCALE.command, say), options.out)
    say(document.measured(report))
    say(f"{report['minutes']:.1f} minutes; see {SCALE.file(options.out)}")
    return 0 if all(one["holds"] for one in report["verdicts"]) else 1


if __name__ == "__main__":
    start(main)
