"""What a soak promises, held against what was measured. A number that is missing fails its promise.

Memory is compared where nothing is under way. It may grow at first: series of metrics appear, caches fill, allocators
keep what a burst once needed. So the second half alone is judged: the median of the slopes between all pairs of its
rests (which one odd rest does not move), times the half's length. Ten mebibytes are about one percent of a serving
process, and little beside the thousands of requests that a half has: a leak of a kilobyte a request is over it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from tests.bench.overload.measures import quantile
from tests.bench.overload.verdicts import Verdict
from tests.bench.soak.sampling import parts
from tests.reckoning import REST

GROWTH_BYTES = 10 * 2**20
RESTS = 3
"""As few make a slope."""
DRIFT = 1.2
SLOWED = 1.1
SLOWED_TAIL = 1.2
HELD_BYTES = 16 * 2**20
PROBES = 100
"""As few make a 99th percentile."""
FIGURES = {"first": "TTFT", "pace": "TPOT", "total": "total time"}
Data = Mapping[str, Any]


def judge(report: Data) -> list[Verdict]:
    """Every promise of a run."""
    rests, legs = report["rests"], report["legs"]
    roles = sorted({role for one in rests for role in one["processes"]})
    requests = sum(leg["load"]["requests"] for leg in legs[len(legs) // 2 :])
    return [
        at_rest(rests, len(legs) + 1),
        *(memory(rests, role, requests) for role in roles or ["serving"]),
        *(unchanged(rests, what) for what in ("descriptors", "threads", "tasks")),
        *drift([leg["probes"] for leg in legs]),
        *reader([turn for leg in legs for turn in leg["turns"]], _probes(legs), report["ticks"]),
        answered(legs),
        Verdict(
            "no error in the server's log",
            f"{len(report['log'])} lines" + (f", first: {report['log'][0][:200]}" if report["log"] else ""),
            not report["log"],
        ),
        Verdict(
            "audit, ledger and metrics agree, and no reservation is held",
            report["books"] or "they do",
            not report["books"],
        ),
        Verdict("every leg could be measured", "; ".join(report["faults"]) or "yes", not report["faults"]),
    ]


def _probes(legs: Sequence[Data]) -> list[Data]:
    return [probe for leg in legs for probe in leg["probes"]]


def at_rest(rests: Sequence[Data], expected: int) -> Verdict:
    """After each leg the server came to rest: no cache block in use, nothing under way, everything booked."""
    busy = [
        f"{name} {value:g} at rest {number}"
        for number, one in enumerate(rests)
        for name, value in one["gauges"].items()
        if name in REST and value != 0
    ]
    holds = not busy and len(rests) == expected > 0
    return Verdict(
        "at rest no cache block is in use and nothing under way",
        ", ".join(busy) or f"at {len(rests)} of {expected} rests",
        holds,
    )


def memory(rests: Sequence[Data], role: str, requests: int) -> Verdict:
    """Of one process: what it holds at rest does not grow in the second half."""
    promise = f"memory of the {role} process at rest grows by at most {GROWTH_BYTES / 2**20:.0f} MiB in the second half"
    half = rests[len(rests) // 2 :]
    points = [(one["at"], one["processes"][role]["own_bytes"]) for one in half if role in one["processes"]]
    if len(points) < RESTS or len(points) < len(half):
        return Verdict(promise, f"not measured: {len(points)} of {len(half)} rests", holds=False)
    grown = slope(points) * (points[-1][0] - points[0][0])
    told = f"{grown / 2**20:+.1f} MiB of {points[-1][1] / 2**20:.0f} in {requests} requests"
    return Verdict(promise, told, grown <= GROWTH_BYTES)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points."""
    return statistics.median((y - x) / (at - since) for (since, x), (at, y) in combinations(points, 2))


def unchanged(rests: Sequence[Data], what: str) -> Verdict:
    """Descriptors, threads or tasks are at the last rest what they were at the first."""
    promise = f"{what} at the last rest are those of the first"
    if len(rests) < 2:
        return Verdict(promise, "not measured", holds=False)
    before, after = parts(rests[0], what), parts(rests[-1], what)
    changes = [
        f"{name} {before.get(name, 0)} to {after.get(name, 0)}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, 0) != after.get(name, 0)
    ]
    # The name of a process that went away and came again is the same; a count of none says that nothing was seen.
    told = ", ".join(changes) or ", ".join(f"{name} {count}" for name, count in sorted(after.items()))
    return Verdict(promise, told or "not measured", bool(after) and not changes)


def drift(legs: Sequence[Sequence[Data]]) -> list[Verdict]:
    """The probe's 99th percentiles in the second half of the legs, beside the first half."""
    middle = len(legs) // 2
    halves = [[probe for leg in half for probe in leg] for half in (legs[:middle], legs[middle:])]
    found = []
    for figure, title in FIGURES.items():
        promise = f"p99 of the probe's {title} in the second half is at most {DRIFT:g} times that of the first"
        before, after = (quantile([one[figure] for one in half], 0.99) for half in halves)
        if min(map(len, halves)) < PROBES or not before or after is None:
            found.append(
                Verdict(promise, f"not measured: {' and '.join(str(len(one)) for one in halves)} probes", holds=False)
            )
            continue
        told = f"{after / before:.2f} times ({_milliseconds(before)}, then {_milliseconds(after)})"
        found.append(Verdict(promise, told, after <= DRIFT * before))
    return found


def reader(turns: Sequence[Data], probes: Sequence[Data], ticks: Sequence[Sequence[float]]) -> list[Verdict]:
    """A slow reader slows nobody, holds little, and is cut; one that reads the same at once is not."""
    slow, quick = ([turn for turn in turns if turn["pace"] == pace] for pace in ("slow", "quick"))
    found = [_slowed(share, bound, _within(probes, slow), _within(probes, quick)) for share, bound in _SLOWED]
    peaks = [[_peak(ticks, turn) for turn in some] for some in (slow, quick)]
    known = [[one for one in some if one is not None] for some in peaks]
    held = statistics.median(known[0]) - statistics.median(known[1]) if all(known) and known == peaks else None
    found.append(
        Verdict(
            f"a slow reader makes the serving process hold at most {HELD_BYTES / 2**20:.0f} MiB more than a quick one",
            "not measured" if held is None else f"{held / 2**20:+.1f} MiB (medians of the peaks of turns)",
            held is not None and held <= HELD_BYTES,
        )
    )
    cuts, of_quick = sum(turn["cut"] for turn in slow), sum(turn["cut"] for turn in quick)
    after = [one for turn in slow for one in turn["seconds_to_cut"]]
    told = f", after {statistics.median(after):.0f} s" if after else ""
    found.append(
        Verdict(
            "in each of its turns a slow reader is cut; a quick reader of the same stream never is",
            f"{cuts} cuts in {len(slow)} turns{told}; {of_quick} of the quick",
            bool(slow) and all(turn["cut"] for turn in slow) and bool(quick) and of_quick == 0,
        )
    )
    return found


_SLOWED = ((0.5, SLOWED), (0.99, SLOWED_TAIL))


def _slowed(share: float, bound: float, slow: Sequence[Data], quick: Sequence[Data]) -> Verdict:
    promise = (
        f"beside a slow reader the probe's TPOT p{share * 100:.0f} is at most {bound:g} times that beside a quick one"
    )
    ours, theirs = (quantile([one["pace"] for one in some], share) for some in (slow, quick))
    if min(len(slow), len(quick)) < PROBES or ours is None or not theirs:
        return Verdict(promise, f"not measured: {len(slow)} and {len(quick)} probes", holds=False)
    told = f"{ours / theirs:.2f} times ({_milliseconds(ours)} and {_milliseconds(theirs)})"
    return Verdict(promise, told, ours <= bound * theirs)


def _within(probes: Iterable[Data], turns: Sequence[Data]) -> list[Data]:
    """Those that were sent and answered within one of the turns."""
    spans = [(turn["begun"], turn["ended"]) for turn in turns]
    return [one for one in probes if any(a <= one["at"] and one["at"] + one["total"] <= b for a, b in spans)]


def _peak(ticks: Iterable[Sequence[float]], turn: Data) -> float | None:
    return max((held for at, held in ticks if turn["begun"] <= at <= turn["ended"]), default=None)


def answered(legs: Sequence[Data]) -> Verdict:
    """Every caller of the load had an answer that it may have; every end of a request was among them."""
    wrong = sum(leg["load"]["wrong"] for leg in legs)
    ends = {end for leg in legs for end in leg["load"]["ends"]}
    requests = sum(leg["load"]["requests"] for leg in legs)
    first = next((one for leg in legs for one in leg["load"]["wrong_ones"]), None)
    told = f"{wrong} of {requests} were not" + ("" if first is None else f", first: {first}")
    missing = {"whole", "done", "error", "left"} - ends
    if missing:
        told += f"; no request ended as {sorted(missing)}"
    return Verdict(
        "every request of the load is answered as it should be", told, requests > 0 and not wrong and not missing
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
