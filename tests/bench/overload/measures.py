"""The arithmetic: what is in time, goodput, quantiles, the summary of a stage. Records in, numbers out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.bench.overload.records import Record

LAGGED_SECONDS = 0.05
"""A stage whose requests were sent later than this (99th percentile) is marked: the generator had a part in it."""

DRIFT_SHARE = 0.15
"""Saturation before and after a sweep may differ by this share of their mean; beyond it the sweep is marked."""


@dataclass(frozen=True)
class Slo:
    """What a caller calls in time."""

    time_to_first_token_seconds: float
    time_per_output_token_seconds: float

    def longest_seconds(self, tokens: int) -> float:
        """A reply of so many tokens that takes longer cannot be in time."""
        return self.time_to_first_token_seconds + (tokens - 1) * self.time_per_output_token_seconds

    def met(self, record: Record) -> bool:
        """Complete, soon begun and steadily continued."""
        first, pace = record.time_to_first_token, record.time_per_output_token
        return (
            first is not None
            and pace is not None
            and first <= self.time_to_first_token_seconds
            and pace <= self.time_per_output_token_seconds
        )


def quantile(values: Iterable[float], share: float) -> float | None:
    """The quantile between the two nearest values; None when there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


@dataclass(frozen=True)
class Spread:
    """How many there were, their median and their 95th percentile."""

    count: int
    p50: float | None
    p95: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Of those that are not None."""
        known = [value for value in values if value is not None]
        return cls(len(known), quantile(known, 0.5), quantile(known, 0.95))


@dataclass(frozen=True)
class Summary:
    """One stage, or one tenant's part of it."""

    offered_per_second: float
    """Requests that were due, each second."""
    goodput_per_second: float
    """Requests in time, each second."""
    requests: int
    in_time: int
    late: int
    """Complete, but not in time."""
    refused: int
    failed: int
    cut: int
    """Still open when the stage was over."""
    codes: dict[str, int]
    time_to_first_token: Spread
    time_per_output_token: Spread
    refusal_latency: Spread
    merged: int
    """Complete replies of which two or more tokens came in one piece."""
    lag_p99: float | None
    lagged: bool


def counted(records: Iterable[Record], start: float, end: float) -> list[Record]:
    """Those that were due from `start` until `end`."""
    return [record for record in records if start <= record.scheduled < end]


def summarize(records: Sequence[Record], seconds: float, slo: Slo) -> Summary:
    """The numbers of the records that count, over the seconds in which they were due."""
    outcomes = Counter(record.outcome for record in records)
    in_time = sum(slo.met(record) for record in records)
    lag = quantile((record.lag for record in records), 0.99)
    return Summary(
        offered_per_second=len(records) / seconds,
        goodput_per_second=in_time / seconds,
        requests=len(records),
        in_time=in_time,
        late=outcomes["complete"] - in_time,
        refused=outcomes["refused"],
        failed=outcomes["failed"],
        cut=outcomes["cut"],
        codes=dict(sorted(Counter(record.code for record in records if record.code).items())),
        time_to_first_token=Spread.of(record.time_to_first_token for record in records),
        time_per_output_token=Spread.of(record.time_per_output_token for record in records),
        refusal_latency=Spread.of(record.refusal_latency for record in records),
        merged=sum(record.outcome == "complete" and len(record.chunks) != record.asked_tokens for record in records),
        lag_p99=lag,
        lagged=lag is not None and lag > LAGGED_SECONDS,
    )


def completed_in_time(records: Iterable[Record], start: float, end: float, slo: Slo) -> int:
    """How many replies in time ended from `start` until `end`: what a closed loop can say of throughput."""
    return sum(start <= record.end < end and slo.met(record) for record in records)


def tokens_between(records: Iterable[Record], tenant: str, start: float, end: float) -> int:
    """How many tokens a tenant received in a span, whatever became of their requests.

    A piece of a complete reply counts as that reply's tokens over its pieces, since a busy server merges tokens; what
    is known of other replies is their pieces.
    """
    total = 0.0
    for record in records:
        if record.tenant == tenant and record.chunks:
            weight = record.asked_tokens / len(record.chunks) if record.outcome == "complete" else 1.0
            total += weight * sum(start <= at < end for at in record.chunks)
    return round(total)


def difference(one: float, other: float) -> float | None:
    """How far two amounts are apart, as a share of their mean; None when both are nothing."""
    mean = (one + other) / 2
    return abs(one - other) / mean if mean else None


def drifted(before: float, after: float) -> bool:
    """Whether the machine changed so much during a sweep that its multiples of saturation are in doubt."""
    apart = difference(before, after)
    return apart is None or apart > DRIFT_SHARE


def retry_ratio(told_seconds: float, refused_until: float, accepted_at: float) -> float:
    """What a refusal told over the truth, which lies between the last probe refused and the first accepted.

    Measured against the nearest point of that span: 1.0 inside it.
    """
    if told_seconds > accepted_at:
        return told_seconds / accepted_at
    if told_seconds < refused_until:
        return told_seconds / refused_until
    return 1.0
