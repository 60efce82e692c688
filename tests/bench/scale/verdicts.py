"""What is promised of scale, and whether a report keeps it. Knows the report's form alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FLAT = 1.15
"""Two processes of one size differ by up to a tenth here, in either direction: what grew by more than this grew."""
STORED = 1.25
"""Of Jubako's part alone: the accounts and sums of few tenants share a page of their database, and a batch writes it
once; with many, each request writes pages of its own. That is a step of a tenth, and not one that goes on."""
STALL_MS = 250.0
"""The longest pause that a reload may add to a stream: a quarter of a second is what a reader takes for a hiccup."""
PAGE_GROWTH = 1.05
"""The metrics page has no label that a tenant can choose."""

_PROMISES: Mapping[str, tuple[Callable[[dict[str, Any]], float], float]] = {
    "CPU a request, 10,000 tenants to 10": (lambda found: found["requests"]["whole"]["10000"]["ratio"], FLAT),
    "the same, Jubako's part alone": (lambda found: found["requests"]["own"]["10000"]["ratio"], STORED),
    "CPU a token, 256 streams to 16": (lambda found: found["most_beside_16"]["ratio"], FLAT),
    "CPU a token at 64 streams, 10,000 tenants to 10": (lambda found: found["tenants_beside_few"]["ratio"], FLAT),
    "metrics page, 10,000 tenants to 10": (
        lambda found: found["metrics"]["10000"]["bytes"] / found["metrics"]["10"]["bytes"],
        PAGE_GROWTH,
    ),
    "ms of the longest pause in a stream, more while 10,000 tenants are read again": (
        lambda found: found["reload"]["tenants"]["gap_max_ms"] - found["reload"]["nothing"]["gap_max_ms"],
        STALL_MS,
    ),
    "ms of the same while 10,000 keys are read again": (
        lambda found: found["reload"]["keys"]["gap_max_ms"] - found["reload"]["nothing"]["gap_max_ms"],
        STALL_MS,
    ),
}


def verdicts(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Each promise with what was found; all are upper bounds."""
    found = [(what, read(report), bound) for what, (read, bound) in _PROMISES.items()]
    return [{"what": what, "found": value, "bound": bound, "holds": value <= bound} for what, value, bound in found]
