"""`python -m tests.bench.scale`: measure, judge, and make the part of the page.

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

from tests.bench.scale import document
from tests.bench.scale.run import Report, run
from tests.bench.scale.verdicts import verdicts
from tests.project import REPOSITORY

OUT = REPOSITORY / "build" / "scale"
PAGE = REPOSITORY / "docs" / "PERFORMANCE.md"
DATA = "scale.json"
COMMAND = "python -m tests.bench.scale run"


def main(arguments: list[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("command", choices=["run", "document"])
    parser.add_argument("--out", type=Path, default=OUT, help="where the report is (default: build/scale)")
    options = parser.parse_args(arguments)
    if options.command == "document":
        document.publish(json.loads((options.out / DATA).read_text()), PAGE)
        return 0
    signal.signal(signal.SIGTERM, _leave)  # so that processes that run are ended too
    with tempfile.TemporaryDirectory() as folder:
        report: Report = run(Path(folder), COMMAND, _say)
    report["verdicts"] = verdicts(report)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / DATA).write_text(json.dumps(report, indent=1) + "\n")
    _say(document.measured(report))
    _say(f"{report['minutes']:.1f} minutes; see {options.out / DATA}")
    return 0 if all(one["holds"] for one in report["verdicts"]) else 1


def _say(text: str) -> None:
    print(text, flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
