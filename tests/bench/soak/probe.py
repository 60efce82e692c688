"""The probe: a process of its own that asks for one plain streamed chat after the other, and times each.

    python -m tests.bench.soak.probe < plan > samples

Its wire is that of the benchmark of speed. Times are the machine's monotonic clock, as the other processes read it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass

import uvloop

from tests.bench.speed import load
from tests.bench.speed.scenarios import CHAT
from tests.contract.corpus import BASE, says

TOKENS = 64
PAUSE_SECONDS = 0.05
BODY = {
    "model": BASE,
    "messages": says("Request NUMBER: tell me of a noodle shop."),
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


@dataclass(frozen=True)
class Plan:
    """For how long, over how many connections, and the number of the first request."""

    port: int
    key: str
    seconds: float
    connections: int
    first_number: int


@dataclass(frozen=True)
class Probe:
    """One reply. Times are seconds: `at` of its sending, the others from then on, or between tokens."""

    at: float
    first: float
    pace: float
    total: float


async def run(plan: Plan) -> list[Probe]:
    """Each connection asks again as soon as it was answered, after a short pause."""
    ends_at = time.monotonic() + plan.seconds
    wire = load.Plan(plan.port, plan.key, CHAT, BODY, plan.connections, 1)
    numbers = iter(range(plan.first_number, sys.maxsize))

    async def caller() -> list[Probe]:
        _, reply = await asyncio.get_running_loop().create_connection(load.Reply, "127.0.0.1", plan.port)
        found = []
        while time.monotonic() < ends_at:
            at = time.monotonic()
            one = await reply.ask(load.request(wire, next(numbers)))
            pace = (one.total_seconds - one.first_seconds) / max(1, one.tokens - 1)
            found.append(Probe(at, one.first_seconds, pace, one.total_seconds))
            await asyncio.sleep(PAUSE_SECONDS)
        reply.transport.close()
        return found

    many = await asyncio.gather(*(caller() for _ in range(plan.connections)))
    return sorted((one for found in many for one in found), key=lambda one: one.at)


def main() -> None:
    """One leg."""
    json.dump([asdict(one) for one in uvloop.run(run(Plan(**json.load(sys.stdin))))], sys.stdout)


if __name__ == "__main__":
    main()
