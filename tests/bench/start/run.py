"""A whole run: one server after the other, each alone, round after round; what is judged is the ratio of each round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench import machine
from tests.bench.command import Report, Say
from tests.bench.projects import PROFILE
from tests.bench.speed import measure
from tests.bench.speed.run import DISTRIBUTIONS
from tests.bench.start.servers import Start, start_jubako, start_vllm

Round = dict[str, Start]
STARTS: dict[str, Callable[[Path], Start]] = {"vllm": start_vllm, "jubako": start_jubako}
FIGURES = ("ready_seconds", "answer_seconds", "cpu_seconds", "resident_bytes")
JUDGED, AT_MOST = "ready_seconds", 1.10


def run(folder: Path, command: str, rounds: int, say: Say) -> Report:
    """Measure `rounds` pairs of starts after one that is not counted; `folder` keeps what the servers wrote."""
    began = time.monotonic()
    found: list[Round] = []
    for number in range(rounds + 1):
        order = list(STARTS)[:: 1 if number % 2 else -1]
        measured = {name: STARTS[name](folder) for name in order}
        if number:  # the first has the files read and the bytecode made, for both
            found.append(measured)
        say(f"round {number} of {rounds}: " + ", ".join(_line(name, one) for name, one in sorted(measured.items())))
    figures = [
        {name: {one: float(getattr(start, one)) for one in FIGURES} for name, start in each.items()} for each in found
    ]
    summary = measure.summary(figures)
    ratio = summary[JUDGED]["ratio"]
    return {
        **machine.head(command, DISTRIBUTIONS),
        "engine": PROFILE,
        "rounds": [{name: one.as_dict() for name, one in each.items()} for each in found],
        "summary": summary,
        "phases": {name: _phases([each[name] for each in found]) for name in STARTS},
        "verdict": {"figure": JUDGED, "ratio": ratio, "bound": AT_MOST, "holds": ratio <= AT_MOST},
        "minutes": (time.monotonic() - began) / 60,
    }


def _phases(starts: Sequence[Start]) -> dict[str, float]:
    return {phase: statistics.median(one.phases.get(phase, 0.0) for one in starts) for phase in starts[0].phases}


def _line(name: str, start: Start) -> str:
    return (
        f"{name} ready after {start.ready_seconds:.1f} s, {start.cpu_seconds:.1f} s of CPU, "
        f"answered after {start.answer_seconds:.1f} s"
    )
