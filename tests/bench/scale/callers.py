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
class Plan:
    """How many requests, over how many connections at once, to which ports, with which keys."""

    ports: list[int]
    """Connections are dealt to them in turn."""
    keys_file: str
    """A list of keys; requests take them in turn."""
    body: Mapping[str, Any]
    connections: int
    requests: int
    """Of each connection, one after the other."""
    first: int = 0
    """Which key begins; a window goes on where the last one ended."""


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


async def run(plan: Plan, keys: Sequence[str]) -> list[Seen]:
    """Send everything; each connection asks again as soon as it was answered."""

    async def caller(number: int) -> list[Seen]:
        port = plan.ports[number % len(plan.ports)]
        _, reply = await asyncio.get_running_loop().create_connection(TimedReply, "127.0.0.1", port)
        found = []
        for turn in range(plan.requests):
            place = plan.first + turn * plan.connections + number
            reply.arrivals.clear()
            sample = await reply.ask(_request(plan.body, keys[place % len(keys)], place))
            found.append(Seen(sample, [after - before for before, after in pairwise(reply.arrivals)]))
        reply.transport.close()
        return found

    return [one for many in await asyncio.gather(*map(caller, range(plan.connections))) for one in many]


def _request(body: Mapping[str, Any], key: str, number: int) -> bytes:
    # Never the same prompt twice, or what is cached from the request before would be measured.
    text = json.dumps(body).replace("NUMBER", str(number)).encode()
    lines = ["POST /v1/completions HTTP/1.1", "host: bench", f"authorization: Bearer {key}"]
    lines += ["content-type: application/json", f"content-length: {len(text)}", "", ""]
    return "\r\n".join(lines).encode() + text


def main() -> None:
    """One window."""
    plan = Plan(**json.load(sys.stdin))
    keys = json.loads(Path(plan.keys_file).read_text())
    began, cpu = time.perf_counter(), time.process_time()
    seen = uvloop.run(run(plan, keys))
    found: dict[str, float] = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "requests": len(seen),
        "tokens": sum(one.sample.tokens for one in seen),
        "events": sum(one.sample.events for one in seen),
        "total_p50_ms": 1e3 * statistics.median(one.sample.total_seconds for one in seen),
        "total_max_ms": 1e3 * max(one.sample.total_seconds for one in seen),
    }
    gaps = sorted(gap for one in seen for gap in one.gaps)
    if gaps:
        found |= {f"gap_p{part}_ms": 1e3 * gaps[len(gaps) * part // 100] for part in (50, 99)}
        found["gap_max_ms"] = 1e3 * gaps[-1]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
