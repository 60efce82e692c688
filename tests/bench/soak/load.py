"""The mixed load: a process of its own that keeps a number of callers busy for some seconds, and counts what they saw.

    python -m tests.bench.soak.load < plan > counts

It knows the API through `tests.mixed_load`; it knows no server.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvloop

from tests.mixed_load import KINDS, Sent, ask_until_broken, endless

PERMITTED = frozenset({200, 400, 401, 403, 404, 408, 413, 415, 429, 503, 504})
"""What a caller of this load may be answered; any other status is a fault of the server."""
MOST_TOLD = 20


@dataclass(frozen=True)
class Plan:
    """For how long, how many at once, with whose keys."""

    url: str
    keys: Mapping[str, str]
    seconds: float
    at_once: int
    seed: int


def counts(sent: list[Sent]) -> dict[str, Any]:
    """How many of each kind and end, and what should not have been."""
    wrong = [one for one in sent if one.end == "broken" or (one.status and one.status not in PERMITTED)]
    return {
        "requests": len(sent),
        "kinds": dict(Counter(one.kind for one in sent)),
        "ends": dict(Counter(one.end for one in sent)),
        "statuses": dict(Counter(str(one.status) for one in sent)),
        "wrong": len(wrong),
        "wrong_ones": [[one.request_id, one.kind, one.end, one.status, one.text[-300:]] for one in wrong[:MOST_TOLD]],
    }


def _until(requests: Iterator[Sent], ends_at: float) -> Iterator[Sent]:
    while time.monotonic() < ends_at:
        yield next(requests)


async def run(plan: Plan) -> dict[str, Any]:
    """All of it."""
    requests = endless(random.Random(plan.seed), list(plan.keys), f"soak-{plan.seed}", list(KINDS))
    until = _until(requests, time.monotonic() + plan.seconds)
    return counts(await ask_until_broken(plan.url, plan.keys, until, at_once=plan.at_once))


def main() -> None:
    """One leg."""
    json.dump(uvloop.run(run(Plan(**json.load(sys.stdin)))), sys.stdout)


if __name__ == "__main__":
    main()
