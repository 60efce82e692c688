"""What a caller is told of its budgets: headers' values, and refusals with the limit, what is used, and when to return.

Pure. Names the caller's own tenant and key by "this tenant" and "this API key", and never anyone else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from jubako.errors import Busy, NeverFits, QuotaExhausted, Refusal
from jubako.gate.budgets.store import Answer
from jubako.gate.budgets.windows import DAY_SECONDS, NEVER, SLOT_LIFE_SECONDS, Standing, month_end, month_of
from jubako.vocabulary import Budget, Rate, Rates


@dataclass(frozen=True, slots=True)
class Asked:
    """What a store was asked for: the budgets in the order of the answer's standings, with whose each is."""

    budgets: tuple[tuple[str, Budget], ...]
    requests: int
    """One, or zero if only tokens are amended."""
    tokens: int
    held: int = 0
    """What the same request holds already, and the standings leave out."""


def rates(asked: Asked, answer: Answer) -> Rates:
    """The tightest limits a minute after the answer: the one with the fewest left, then the one that is free last."""
    second = int(answer.now)
    requests, tokens = None, None
    for (_, budget), standing in zip(asked.budgets, answer.standings, strict=True):
        more_requests, more_tokens = (asked.requests, asked.tokens) if answer.granted else (0, asked.held)
        last = second if more_requests else standing.requests_last
        requests = _tighter(requests, budget.requests_per_minute, standing.requests + more_requests, last, answer.now)
        last = second if more_tokens else standing.tokens_last
        tokens = _tighter(tokens, budget.tokens_per_minute, standing.tokens + more_tokens, last, answer.now)
    return Rates(requests, tokens)


def _tighter(found: Rate | None, limit: int | None, used: int, last: int, now: float) -> Rate | None:
    if limit is None:
        return found
    reset = max(0.0, last + SLOT_LIFE_SECONDS - now) if used else 0.0
    rate = Rate(limit, max(0, limit - used), reset)
    if found is None or (rate.remaining, -rate.reset_seconds) < (found.remaining, -found.reset_seconds):
        return rate
    return found


def refusal(asked: Asked, answer: Answer, *, place_free_seconds: float) -> Refusal:
    """Why the answer is no. What waiting cannot mend is said first, then the longest wait.

    `place_free_seconds` is an estimate of when one of the requests under way ends.
    """
    sides = [(who, budget, standing) for (who, budget), standing in zip(asked.budgets, answer.standings, strict=True)]
    found = (
        _never(sides, asked.tokens)
        or _quota(sides, asked.tokens, answer.now)
        or _minute(sides, asked.tokens, answer.now)
        or _held(sides, asked.tokens, place_free_seconds)
        or _concurrency(sides, place_free_seconds)
    )
    found.rates = rates(asked, answer)
    return found


Sides = list[tuple[str, Budget, Standing]]


def _never(sides: Sides, tokens: int) -> Refusal | None:
    for who, budget, standing in sides:
        if standing.tokens_fit_at == NEVER:
            return NeverFits(
                f"This request may use {tokens} tokens, and {who} may use {budget.tokens_per_minute} a minute: it can "
                "never fit. Ask for fewer output tokens (max_tokens, n) or send a shorter prompt."
            )
        if standing.requests_fit_at == NEVER:
            return NeverFits(f"{_first(who)} may send no requests: its limit a minute is zero.")
        if budget.concurrency == 0:
            return NeverFits(f"{_first(who)} may send no requests: its limit of requests under way is zero.")
    return None


def _quota(sides: Sides, tokens: int, now: float) -> Refusal | None:
    """Without what is held: that may be given back."""
    second = int(now)
    ends = {"month": month_end(month_of(second)), "day": (second // DAY_SECONDS + 1) * DAY_SECONDS}
    for span, limit, used, text in _over(sides, tokens):
        if used + tokens > limit:
            resets = datetime.fromtimestamp(ends[span], tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
            advice = (
                "It can never fit: ask for fewer output tokens or send a shorter prompt."
                if tokens > limit
                else f"Ask for fewer tokens, or wait: the {span} ends at {resets}."
            )
            return QuotaExhausted(f"{text} {advice}")
    return None


def _held(sides: Sides, tokens: int, seconds: float) -> Refusal | None:
    for *_, text in _over(sides, tokens):
        return Busy(f"{text} Wait for one of those to end: it may use less than it holds.", retry_after_seconds=seconds)
    return None


def _over(sides: Sides, tokens: int) -> Iterator[tuple[str, int, int, str]]:
    """Each limit of a month or day that is passed: span, limit, what is used for good, in words."""
    for span in ("month", "day"):
        for who, budget, standing in sides:
            limit = budget.tokens_per_month if span == "month" else budget.tokens_per_day
            counted = standing.month_tokens if span == "month" else standing.day_tokens
            if limit is not None and tokens and counted + tokens > limit:
                # What a request holds since the span before is not counted in this one.
                held = min(standing.held_tokens, counted)
                text = (
                    f"{_first(who)} may use {limit} tokens a {span}; {counted} are used or held by requests under way, "
                    f"and this request may use {tokens}."
                )
                yield span, limit, counted - held, text


def _minute(sides: Sides, tokens: int, now: float) -> Refusal | None:
    waits: list[tuple[int, str]] = []
    for who, budget, standing in sides:
        if standing.requests_fit_at:
            text = f"{_first(who)} may send {budget.requests_per_minute} requests a minute; {standing.requests} "
            waits.append((standing.requests_fit_at, f"{text}were sent."))
        if standing.tokens_fit_at:
            text = f"{_first(who)} may use {budget.tokens_per_minute} tokens a minute; {standing.tokens} are used "
            waits.append((standing.tokens_fit_at, f"{text}or held, and this request may use {tokens}."))
    if not waits:
        return None
    at, text = max(waits)
    seconds = max(0.0, at - now)
    return Busy(f"{text} It fits in {seconds:.1f} seconds.", retry_after_seconds=seconds)


def _concurrency(sides: Sides, seconds: float) -> Refusal:
    who, budget, standing = next(
        side for side in sides if side[1].concurrency is not None and side[2].under_way >= side[1].concurrency
    )
    return Busy(
        f"{_first(who)} may have {budget.concurrency} requests under way at once; {standing.under_way} are. Wait "
        "for one to end.",
        code="concurrency_exceeded",
        retry_after_seconds=seconds,
    )


def _first(who: str) -> str:
    return who[0].upper() + who[1:]
