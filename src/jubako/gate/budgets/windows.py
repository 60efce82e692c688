"""The arithmetic of one account: what a tenant or a key has used, and when the next request fits.

Pure: no clock, no store. `redis_scripts` states the same in Lua, and both pass the same tests.

A minute is a window that slides over slots of one second. An event of slot `s` happened before `s + 1`, so it may be
less than a minute old until `s + 61`, and is counted until then: in no sixty seconds is more let through than the
limit. Days and months are those of the calendar in UTC.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from jubako.vocabulary import Budget

SLOT_LIFE_SECONDS = 61
"""A minute, and the second that an event's place in its slot is unknown by."""
DAY_SECONDS = 86_400
NEVER = -1
"""In place of a second: waiting does not help."""

MINUTE = 1
DAY = 2
MONTH = 4
"""The spans an account counts: bits, kept with each reservation, so that it gives back where it has taken."""

_HEADER = 6


@dataclass(frozen=True, slots=True)
class Standing:
    """An account seen by one request: what was used before it, and from which second on its limits let it pass."""

    requests: int
    tokens: int
    """Both within the minute."""
    requests_last: int
    tokens_last: int
    """The newest slot that has any; zero if none has."""
    day_tokens: int
    month_tokens: int
    under_way: int
    held_tokens: int
    """Of those that are counted, what requests under way may not use after all."""
    requests_fit_at: int
    tokens_fit_at: int
    """A second of the clock; zero: they fit now; `NEVER`."""


def spans(budget: Budget) -> int:
    """What has to be counted for a budget."""
    minute = budget.requests_per_minute is not None or budget.tokens_per_minute is not None
    day, month = budget.tokens_per_day is not None, budget.tokens_per_month is not None
    return MINUTE * minute + DAY * day + MONTH * month


@lru_cache(maxsize=8)
def _month_of_day(day: int) -> int:
    date = time.gmtime(day * DAY_SECONDS)
    return date.tm_year * 12 + date.tm_mon - 1


def month_of(second: int) -> int:
    """The months since year zero."""
    return _month_of_day(second // DAY_SECONDS)


@lru_cache(maxsize=8)
def month_end(month: int) -> int:
    """The second at which the next month begins."""
    year, number = divmod(month + 1, 12)
    return int(datetime(year, number + 1, 1, tzinfo=UTC).timestamp())


@dataclass(slots=True)
class Account:
    """The counts of one tenant or key. Slots stand in the order of time; three lists, because they are summed often."""

    under_way: int = 0
    held_tokens: int = 0
    day: int = 0
    day_tokens: int = 0
    month: int = 0
    month_tokens: int = 0
    seconds: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    advanced_to: int = field(default=-1, compare=False)
    """The second of the last `advance`; not kept."""

    @classmethod
    def unpack(cls, packed: bytes) -> Account:
        """The account that `pack` wrote."""
        numbers = array("q", packed)
        slots = (len(numbers) - _HEADER) // 3
        under_way, held, day, day_tokens, month, month_tokens, *slots_flat = numbers.tolist()
        seconds, requests, tokens = slots_flat[:slots], slots_flat[slots : 2 * slots], slots_flat[2 * slots :]
        return cls(under_way, held, day, day_tokens, month, month_tokens, seconds, requests, tokens)

    def pack(self) -> bytes:
        """All of it as bytes, at most some 1.5 KB: slots are bounded by the window."""
        header = (self.under_way, self.held_tokens, self.day, self.day_tokens, self.month, self.month_tokens)
        return array("q", [*header, *self.seconds, *self.requests, *self.tokens]).tobytes()

    def advance(self, second: int) -> None:
        """Forget what is out of every window."""
        self.advanced_to = second
        oldest = bisect_left(self.seconds, second - SLOT_LIFE_SECONDS + 1)
        # A clock that was set back leaves slots in the future. Near ones count; far ones would block for as long.
        newest = bisect_left(self.seconds, second + SLOT_LIFE_SECONDS)
        if oldest or newest < len(self.seconds):
            self.seconds = self.seconds[oldest:newest]
            self.requests = self.requests[oldest:newest]
            self.tokens = self.tokens[oldest:newest]
        day, month = second // DAY_SECONDS, month_of(second)
        if self.day != day:
            self.day, self.day_tokens = day, 0
        if self.month != month:
            self.month, self.month_tokens = month, 0

    def standing(self, budget: Budget, requests: int, tokens: int) -> Standing:
        """How the account stands before `requests` and `tokens` are added; call `advance` first."""
        seconds, used_requests, used_tokens = self.seconds, sum(self.requests), sum(self.tokens)
        return Standing(
            used_requests,
            used_tokens,
            _last(seconds, self.requests),
            _last(seconds, self.tokens),
            self.day_tokens,
            self.month_tokens,
            self.under_way,
            self.held_tokens,
            _fit_at(seconds, self.requests, used_requests, budget.requests_per_minute, requests),
            _fit_at(seconds, self.tokens, used_tokens, budget.tokens_per_minute, tokens),
        )

    def add(self, second: int, counted: int, requests: int, tokens: int) -> None:
        """Add to the slot, day and month of `second`, as far as they are counted and still last; never below zero."""
        if counted & MINUTE and (requests or tokens):
            at = bisect_left(self.seconds, second)
            present = at < len(self.seconds) and self.seconds[at] == second
            if present:
                self.requests[at] = max(0, self.requests[at] + requests)
                self.tokens[at] = max(0, self.tokens[at] + tokens)
            elif requests > 0 or tokens > 0:
                self.advanced_to = -1  # it may be out of the window
                self.seconds.insert(at, second)
                self.requests.insert(at, max(0, requests))
                self.tokens.insert(at, max(0, tokens))
        if counted & DAY and self.day == second // DAY_SECONDS:
            self.day_tokens = max(0, self.day_tokens + tokens)
        if counted & MONTH and self.month == month_of(second):
            self.month_tokens = max(0, self.month_tokens + tokens)

    def hold(self, requests: int, tokens: int) -> None:
        """So many more are under way, and hold so many more tokens; never below zero."""
        self.under_way = max(0, self.under_way + requests)
        self.held_tokens = max(0, self.held_tokens + tokens)

    def expires(self) -> int | None:
        """The second from which the account says nothing; None while requests are under way."""
        if self.under_way:
            return None
        ends = [self.seconds[-1] + SLOT_LIFE_SECONDS] if self.seconds else [0]
        if self.day_tokens:
            ends.append((self.day + 1) * DAY_SECONDS)
        if self.month_tokens:
            ends.append(month_end(self.month))
        return max(ends)


def fits(standing: Standing, budget: Budget, places: int, tokens: int) -> bool:
    """Whether the budget lets a request pass that needs so many places and tokens."""
    return (
        standing.requests_fit_at == 0
        and standing.tokens_fit_at == 0
        and _within(budget.tokens_per_day, standing.day_tokens, tokens)
        and _within(budget.tokens_per_month, standing.month_tokens, tokens)
        and _within(budget.concurrency, standing.under_way, places)
    )


def _within(limit: int | None, used: int, more: int) -> bool:
    # What asks for nothing passes a limit that is overdrawn already: it makes nothing worse.
    return limit is None or more == 0 or used + more <= limit


def _last(seconds: list[int], counts: list[int]) -> int:
    if counts and counts[-1]:
        return seconds[-1]
    for second, count in zip(reversed(seconds), reversed(counts), strict=True):
        if count:
            return second
    return 0


def _fit_at(seconds: list[int], counts: list[int], used: int, limit: int | None, more: int) -> int:
    if limit is None or more == 0:
        return 0
    if more > limit:
        return NEVER
    excess = used + more - limit
    if excess <= 0:
        return 0
    for second, count in zip(seconds, counts, strict=True):
        excess -= count
        if excess <= 0:
            return second + SLOT_LIFE_SECONDS
    return NEVER
