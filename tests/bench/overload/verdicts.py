"""What was promised, held against what was measured. A number that is missing fails its promise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.overload.measures import drifted

OVERLOADS = (2.0, 4.0, 8.0)
KEPT_SHARE = 0.9
REFUSAL_SECONDS = 0.05
FACTOR = 2.0
FACTOR_SHARE = 0.9
"""The share of refusals whose Retry-After must be within the factor."""
FACTOR_TRIALS = 10
FIRST_TOKEN_RATIO = 1.5
GOODPUT_RATIO = 0.9
TOKENS_DIFFERENCE = 0.1

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One promise: what it says, what was measured, whether it holds."""

    promise: str
    measured: str
    holds: bool


def overload(servers: Mapping[str, Data]) -> list[Verdict]:
    """Of the sweeps of both servers."""
    ours, theirs = _stages(servers, "jubako"), _stages(servers, "vllm")
    peak, their_peak = _peak(ours.values()), _peak(theirs.values())
    found = []
    for multiple in OVERLOADS:
        goodput = ours[multiple]["summary"]["goodput_per_second"] if multiple in ours else None
        kept = _ratio(goodput, peak)
        found.append(
            Verdict(
                f"at {multiple:g} times saturation Jubako keeps at least {KEPT_SHARE:.0%} of its peak goodput",
                "not measured" if kept is None else f"{kept:.0%} ({goodput:.2f} of {peak:.2f} requests/s)",
                kept is not None and kept >= KEPT_SHARE,
            )
        )
    lead = None if peak is None or their_peak is None else peak - their_peak
    found.append(
        Verdict(
            "Jubako's peak goodput is at least that of vLLM's own server",
            "not measured" if lead is None else f"{peak:.2f} and {their_peak:.2f} requests/s",
            lead is not None and lead >= 0,
        )
    )
    return [*found, _refusals(ours)]


def steady(servers: Mapping[str, Data]) -> Verdict:
    """Of the machine: what others do to it in one server's turn must not decide between the two."""
    told, holds = [], True
    for name in ("vllm", "jubako"):
        server = servers.get(name, {})
        before = server.get("saturation", {}).get("requests_per_second")
        after = (server.get("saturation_after") or {}).get("goodput_per_second")
        known = before is not None and after is not None
        holds = holds and before is not None and after is not None and not drifted(before, after)
        told.append(f"{name} {before:.2f}, then {after:.2f} requests/s" if known else f"{name} not measured")
    return Verdict("the machine was steady: saturation is the same after each sweep", "; ".join(told), holds)


def _stages(servers: Mapping[str, Data], name: str) -> dict[float, Data]:
    return {stage["multiple"]: stage for stage in servers.get(name, {}).get("stages", [])}


def _peak(stages: Iterable[Data]) -> float | None:
    return max((stage["summary"]["goodput_per_second"] for stage in stages), default=None)


def _refusals(stages: Mapping[float, Data]) -> Verdict:
    slowest = [stages[m]["summary"]["refusal_latency"]["p95"] for m in OVERLOADS if m in stages]
    known = len(slowest) == len(OVERLOADS) and all(value is not None for value in slowest)
    return Verdict(
        f"refusals are answered within {REFUSAL_SECONDS * 1000:.0f} ms at p95 at every overload",
        f"{max(slowest) * 1000:.0f} ms at the slowest" if known else "not measured, or nothing was refused",
        known and max(slowest) <= REFUSAL_SECONDS,
    )


def retry_after(trials: Sequence[Data]) -> list[Verdict]:
    """Of the trials in which a refused request was tried again and again."""
    ratios = [trial["ratio"] for trial in trials]
    within = sum(1 / FACTOR <= ratio <= FACTOR for ratio in ratios)
    enough = len(ratios) >= FACTOR_TRIALS
    return [
        Verdict(
            f"Retry-After is within a factor of {FACTOR:g} of the truth in at least {FACTOR_SHARE:.0%} of refusals",
            f"{within} of {len(ratios)}" if enough else f"{len(ratios)} trials, {FACTOR_TRIALS} are needed",
            enough and within >= FACTOR_SHARE * len(ratios),
        )
    ]


def fairness(data: Data | None) -> list[Verdict]:
    """Of the tenant that asks for little beside one that asks for ten times as much."""
    first = goodput = apart = None
    if data is not None:
        alone, together = data["alone"], data["together"]
        if not alone["refused"]:  # else its waits alone are those of a queue, and prove nothing
            first = _ratio(together["time_to_first_token"]["p95"], alone["time_to_first_token"]["p95"])
        goodput = _ratio(together["goodput_per_second"], alone["goodput_per_second"])
        apart = data["backlogged"]["difference"]
    return [
        Verdict(
            f"beside a tenant at ten times its rate, B's TTFT p95 is at most {FIRST_TOKEN_RATIO:g} times that alone",
            "not measured" if first is None else f"{first:.2f} times",
            first is not None and first <= FIRST_TOKEN_RATIO,
        ),
        Verdict(
            f"and B keeps at least {GOODPUT_RATIO:.0%} of its goodput, so that a low p95 is not bought with refusals",
            "not measured" if goodput is None else f"{goodput:.0%}",
            goodput is not None and goodput >= GOODPUT_RATIO,
        ),
        Verdict(
            f"tokens served to two backlogged tenants of equal weight differ by at most {TOKENS_DIFFERENCE:.0%}",
            "not measured" if apart is None else f"{apart:.1%}",
            apart is not None and apart <= TOKENS_DIFFERENCE,
        ),
    ]


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
