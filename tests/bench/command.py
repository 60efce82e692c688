"""How a benchmark is called, and what it leaves: its report in a file. It knows nothing of what is measured."""

# ruff: noqa: T201 - a benchmark talks on standard output

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.project import REPOSITORY

Report = dict[str, Any]
Say = Callable[[str], None]
PAGE = REPOSITORY / "docs" / "PERFORMANCE.md"


def say(text: str) -> None:
    """On the terminal, now."""
    print(text, flush=True)


def refuse(text: str) -> int:
    """Say what was wrong; the exit status."""
    print(text, file=sys.stderr)
    return 2


def start(main: Callable[[list[str]], int]) -> NoReturn:
    """Be the program; what it started is ended too when it is told to end."""
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main(sys.argv[1:]))


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@dataclass(frozen=True)
class Benchmark:
    """One of `tests/bench/`, by the name of its package."""

    name: str

    @property
    def command(self) -> str:
        """What makes a whole run."""
        return f"python -m tests.bench.{self.name} run"

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """Of its command line."""
        return argparse.ArgumentParser(prog=f"python -m tests.bench.{self.name}", description=description)

    def add_out(self, *parsers: argparse.ArgumentParser) -> None:
        """The option for where the report is."""
        told = f"where the report is (default: build/{self.name})"
        for one in parsers:
            one.add_argument("--out", type=Path, default=REPOSITORY / "build" / self.name, help=told)

    def file(self, out: Path) -> Path:
        """The report's."""
        return out / f"{self.name}.json"

    def write(self, report: Report, out: Path, *, indent: int | None = 1) -> None:
        """Keep the report."""
        self.file(out).write_text(json.dumps(report, indent=indent, ensure_ascii=False) + "\n")

    def measure(
        self, run: Callable[[Path], Report], out: Path, *, indent: int | None = 1, beside: bool = False
    ) -> Report:
        """Run with a folder that is gone afterwards, of the system or `beside` the report, which is kept."""
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out if beside else None) as folder:
            report = run(Path(folder))
        self.write(report, out, indent=indent)
        return report

    def is_whole(self, report: Report) -> bool:
        """Whether nothing was left out on demand."""
        return bool(report["command"] == self.command)

    def is_sound(self, report: Report) -> bool:
        """Whether everything was measured."""
        return self.is_whole(report) and not report["faults"]

    def publish(
        self,
        out: Path,
        make: Callable[[Report, Path], None],
        place: Path = PAGE,
        worth: Callable[[Report], bool] = lambda _: True,
    ) -> int:
        """Make what is in docs/ of the last report, if it is worth it; the exit status."""
        report = json.loads(self.file(out).read_text())
        if not worth(report):
            return refuse(f"{self.file(out)} is of `{report['command']}`; the page is made of `{self.command}`")
        make(report, place)
        return 0
