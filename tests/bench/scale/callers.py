"""Callers with a key each, in a process of their own: sends requests over raw sockets and says what came back.

The plan is JSON on standard input, the findings are JSON on standard output. It knows no server.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

from tests.bench.speed.load import Reply, Sample


@dataclass(frozen=True)
class Target:
    """Where to ask, and with which keys; requests take them in turn."""

    ports: Sequence[int]
    """Connections are dealt to them in turn."""
    keys_file: str
    """A list of keys."""
    first: int = 0
    """Which key begins: a window goes on where the last one ended."""


@dataclass(frozen=True)
class Plan:
    """What is sent to each of the targets, slice by slice: all of them get their first slice, then their second."""

    targets: Sequence[Target]
    body: Mapping[str, Any]
    connections: int
    requests: int
    """Of each connection, one after the other, in a slice."""
    slices: int = 1

    @property
    def each(self) -> int:
        """Requests that each target gets."""
        return self.slices * self.connections * self.requests


class TimedReply(Reply):
    """Notes the longest time between two arrivals of one reply."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[float] = []

    def data_received(self, data: bytes) -> None:
        """As always."""
        self.arrivals.append(time.perf_counter())
        super().data_received(data)


@dataclass(frozen=True, slots=True)
class Seen:
    """One reply and the times between its parts."""

    sample: Sample
    gaps: list[float]


class Caller:
    """All connections to one target, and what came over them."""

    def __init__(self, plan: Plan, target: Target) -> None:
        self._plan = plan
        self._target = target
        self._keys: list[str] = json.loads(Path(target.keys_file).read_text())
        self._replies: list[TimedReply] = []
        self.seen: list[Seen] = []
        self.seconds = 0.0

    async def open(self) -> None:
        """Connect; connections stay, as an SDK keeps them."""
        ports = self._target.ports
        for number in range(self._plan.connections):
            port = ports[number % len(ports)]
            _, reply = await asyncio.get_running_loop().create_connection(TimedReply, "127.0.0.1", port)
            self._replies.append(reply)

    async def slice(self, number: int) -> None:
        """Send one slice; each connection asks again as soon as it was answered."""
        begun = time.perf_counter()
        first = self._target.first + number * self._plan.connections * self._plan.requests
        await asyncio.gather(*(self._ask(reply, first + place) for place, reply in enumerate(self._replies)))
        self.seconds += time.perf_counter() - begun

    async def _ask(self, reply: TimedReply, first: int) -> None:
        for turn in range(self._plan.requests):
            place = first + turn * self._plan.connections
            reply.arrivals.clear()
            sample = await reply.ask(_request(self._plan.body, self._keys[place % len(self._keys)], place))
            gaps = [after - before for before, after in pairwise(reply.arrivals)]
            self.seen.append(Seen(sample, gaps))

    def close(self) -> dict[str, float]:
        """Disconnect, and say what came."""
        for reply in self._replies:
            reply.transport.close()
        totals = [one.sample.total_seconds for one in self.seen]
        found = {
            "seconds": self.seconds,
            "requests": len(self.seen),
            "tokens": sum(one.sample.tokens for one in self.seen),
            "events": sum(one.sample.events for one in self.seen),
            "total_p50_ms": 1e3 * statistics.median(totals),
            "total_max_ms": 1e3 * max(totals),
        }
        gaps = sorted(gap for one in self.seen for gap in one.gaps)
        if gaps:
            found |= {f"gap_p{part}_ms": 1e3 * gaps[len(gaps) * part // 100] for part in (50, 99)}
            found["gap_max_ms"] = 1e3 * gaps[-1]
        return found


async def run(plan: Plan) -> list[dict[str, float]]:
    """Send everything; what came of each target."""
    callers = [Caller(plan, target) for target in plan.targets]
    for one in callers:
        await one.open()
    for number in range(plan.slices):
        for one in callers[:: 1 if number % 2 else -1]:
            await one.slice(number)
    return [one.close() for one in callers]


def _request(body: Mapping[str, Any], key: str, number: int) -> bytes:
    # Never the same prompt twice, or what is cached from the request before would be measured.
    text = json.dumps(body).replace("NUMBER", str(number)).encode()
    lines = ["POST /v1/completions HTTP/1.1", "host: bench", f"authorization: Bearer {key}"]
    lines += ["content-type: application/json", f"content-length: {len(text)}", "", ""]
    return "\r\n".join(lines).encode() + text


def main() -> None:
    """One plan."""
    given = json.load(sys.stdin)
    plan = Plan(**{**given, "targets": [Target(**one) for one in given["targets"]]})
    cpu = time.process_time()
    found = uvloop.run(run(plan))
    json.dump({"targets": found, "cpu_seconds": time.process_time() - cpu}, sys.stdout)


if __name__ == "__main__":
    main()
