"""One window of one scenario on one server, and what many of them say together. Knows no server and no file."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from tests.bench.calling import call
from tests.bench.speed.load import Plan
from tests.bench.speed.scenarios import Scenario
from tests.bench.speed.servers import Peer

WINDOW_SECONDS = 300.0
IDLE_SECONDS = 5.0
PERCENTILES = (50, 95, 99)
Figures = dict[str, float]


def window(peer: Peer, scenario: Scenario) -> Figures:
    """Send the scenario's load once. The callers are a process of their own; the processor time is the server's."""
    plan = Plan(peer.port, peer.key, scenario.path, scenario.body, scenario.connections, scenario.requests)
    before = peer.cpu_seconds
    found = call("speed.load", plan, WINDOW_SECONDS, f"{scenario.name} on {peer.name}")
    spent = peer.cpu_seconds - before
    samples = found["samples"]
    tokens = sum(one["tokens"] for one in samples)
    figures = {
        "cpu_us_per_token": spent / tokens * 1e6,
        "cpu_ms_per_request": spent / len(samples) * 1e3,
        "tokens_per_second": tokens / found["seconds"],
        "events_per_token": sum(one["events"] for one in samples) / tokens,
    }
    if scenario.body.get("stream"):
        figures |= _spread("ttft", [one["first_seconds"] for one in samples])
        paces = [(one["total_seconds"] - one["first_seconds"]) / max(1, one["tokens"] - 1) for one in samples]
        figures |= _spread("tpot", paces)
    else:
        figures |= _spread("total", [one["total_seconds"] for one in samples])
    return figures


def idle(peer: Peer) -> float:
    """Milliseconds of processor time in a second in which nothing is asked."""
    before, begun = peer.cpu_seconds, time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (peer.cpu_seconds - before) / (time.monotonic() - begun) * 1e3


def _spread(name: str, seconds: Sequence[float]) -> Figures:
    if len(seconds) == 1:
        return {f"{name}_p{part}_ms": seconds[0] * 1e3 for part in PERCENTILES}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"{name}_p{part}_ms": cuts[part - 1] * 1e3 for part in PERCENTILES}


def summary(rounds: Sequence[Mapping[str, Figures]]) -> dict[str, Figures]:
    """Medians of each server, and of the ratios of each round with their range."""
    found: dict[str, Figures] = {}
    for figure in rounds[0]["vllm"]:
        vllm = [one["vllm"][figure] for one in rounds]
        jubako = [one["jubako"][figure] for one in rounds]
        ratios = [ours / theirs for ours, theirs in zip(jubako, vllm, strict=True) if theirs > 0]
        if ratios:
            found[figure] = {
                "vllm": statistics.median(vllm),
                "jubako": statistics.median(jubako),
                "ratio": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
    return found
