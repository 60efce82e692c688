"""How long one decision of admission takes, by the length of the queue and the number of tenants: `make bench-gate`.

Each decision is a request that comes, waits, and starts when another has left. Fails when ten thousand cost so much
more than a hundred that the growth cannot be logarithmic.
"""

# ruff: noqa: T201 - a benchmark talks on standard output

from __future__ import annotations

import sys
import time

from jubako.gate.admission.request import Request, State
from jubako.gate.admission.scheduler import Scheduler
from jubako.vocabulary import Principal, Step, Usage
from tests.simulated_engine import demand, principal, settings

SIZES = (10, 100, 1_000, 10_000)
DECISIONS = 5_000
ROUNDS = 5
FOREVER = 1e9
GROWTH = 4.0
"""Logarithmic growth from 100 to 10,000 is a factor of two; the rest is for the caches of the machine."""


def microseconds(queue: int, tenants: int) -> float:
    """The best of some rounds, for one admit and one leave."""
    started: list[Request] = []
    scheduler = Scheduler(
        settings(queue_requests=1_000_000, queue_tokens=1_000_000_000),
        ceiling=32,
        started=started.append,
        evicted=lambda request, refusal: None,
    )
    who: list[Principal] = [principal(f"tenant-{number}", queue_seconds=FOREVER) for number in range(tenants)]
    what = demand()
    running: list[Request] = []

    def offer(number: int, now: float) -> None:
        request = scheduler.offer(who[number % tenants], what, Usage(), deadline_at=2 * FOREVER, now=now)
        if request.state is State.RUNNING:
            running.append(request)

    for number in range(100):
        scheduler.observe(Step(0.1 * number, 0.1, min(32, 1 + number), 0, min(32, 1 + number)), 0.1 * number)
    now = 10.0
    for number in range(queue + scheduler.capacity.limit):
        offer(number, now)
    best = float("inf")
    for round_number in range(ROUNDS):
        begun = time.perf_counter()
        for number in range(DECISIONS):
            now += 1e-4
            offer(round_number + 7 * number, now)
            scheduler.finish(running.pop(), now)
            running.extend(started)
            started.clear()
        best = min(best, time.perf_counter() - begun)
    return best / DECISIONS * 1e6


def main() -> int:
    """Print the table; the exit status says whether the growth is within the bound."""
    table = {(queue, tenants): microseconds(queue, tenants) for queue in SIZES for tenants in SIZES}
    print("microseconds for one admit and leave")
    print("queue \\ tenants" + "".join(f"{tenants:>10,}" for tenants in SIZES))
    for queue in SIZES:
        print(f"{queue:>15,}" + "".join(f"{table[queue, tenants]:>10.1f}" for tenants in SIZES))
    growth = table[10_000, 10_000] / table[100, 100]
    print(f"from 100 to 10,000 of each: times {growth:.2f}, at most {GROWTH:g}")
    return 0 if growth <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
