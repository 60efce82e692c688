"""Budgets over a store: reservations, the lease of this process, and what happens while the store does not answer.

Fails closed: from the first operation that fails until the store has taken everything that ended meanwhile, every
request with a limit is refused at once. Ends are kept in memory and sent again, so that nothing is lost while the
process lives; their number is bounded by that of the reservations this process may hold.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jubako.errors import Unavailable
from jubako.gate.budgets import answers
from jubako.gate.budgets.port import Reservation
from jubako.gate.budgets.store import Amend, Answer, Claim, End, Store, StoreAway, Take
from jubako.vocabulary import Budget, Principal, Rates

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""The longest that a request waits for the store; while it is known to be away, none waits. Not shorter: an engine on
the CPU leaves little for others, and slow is not away."""
HELD_MAXIMUM = 100_000
"""Reservations of one process that have not ended in the store; more are refused."""
ENDS_AT_ONCE = 200
FENCED_ATTEMPTS = 3
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_HOLD_WEIGHT = 0.1

T = TypeVar("T")


class Uncounted:
    """The reservation of a request that no limit applies to: nothing is kept of it."""

    rates = Rates()

    async def amend(self, tokens: int) -> None:
        """Nothing to do."""

    def end(self, tokens: int | None) -> None:
        """Nothing to do."""


UNCOUNTED = Uncounted()


@dataclass(slots=True)
class Counted:
    """A reservation in the store; see `port.Reservation`."""

    _asked: answers.Asked
    _answer: Answer
    """To what was asked last."""
    _budgets: CountedBudgets
    _number: int
    _tokens: int
    _claims: tuple[Claim, ...]
    _whose: tuple[tuple[str, Budget], ...]
    _since: float
    _ended: bool = field(default=False)
    _certain: bool = field(default=True)
    """Whether the store holds `_tokens` for sure."""
    _amending: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def rates(self) -> Rates:
        """See `port.Reservation`; worked out when it is asked for."""
        return answers.rates(self._asked, self._answer)

    async def amend(self, tokens: int) -> None:
        """Hold `tokens` in all; the reservation stays as it was if they are refused."""
        tokens = max(0, tokens)
        async with self._amending:  # the last to ask is the last to be answered, so what it asked is what is held
            if self._ended or (tokens == self._tokens and self._certain):
                return
            # Who is cancelled meanwhile does not know which of the two is held.
            certain, self._certain = self._certain, False
            answer = await self._budgets.amend(Amend(self._number, tokens, self._claims))
            self._certain = certain or answer.granted
            asked = answers.Asked(self._whose, requests=0, tokens=tokens, held=self._tokens)
            if not answer.granted:
                raise answers.refusal(asked, answer, place_free_seconds=self._budgets.place_free_seconds(answer))
            self._asked, self._answer, self._tokens = asked, answer, tokens

    def end(self, tokens: int | None) -> Coroutine[Any, Any, None] | None:
        """See `port.Reservation`. What it gives back returns also when the store is away: that is told later."""
        if self._ended:
            return None
        self._ended = True
        end = End(self._number, None if tokens is None else max(0, tokens))
        answer = self._budgets.end(end, self._claims, held_since=self._since)
        if answer is None or isinstance(answer, Answer):
            self._stands(answer)
            return None
        return self._wait(answer)

    async def _wait(self, answer: Awaitable[Answer | None]) -> None:
        self._stands(await answer)

    def _stands(self, answer: Answer | None) -> None:
        if answer is not None:
            self._asked, self._answer = answers.Asked(self._whose, requests=0, tokens=0), answer


class CountedBudgets:
    """The `Budgets` of one process; see `port.Budgets`."""

    def __init__(self, store: Store, *, lease_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._monotonic = monotonic
        self._numbers = itertools.count(1)
        self._held = 0
        self._untold: dict[int, End] = {}
        """Ends that the store may not have yet."""
        self._tell_again = False
        self._away = False
        self._closed = False
        self._hold_seconds = 1.0
        """How long reservations last, newer ones counting more."""
        self._beating: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, and begin to renew the lease; raises `StartupFault`."""
        await self._store.open()
        try:
            await self._within(self._store.beat())
        except StoreAway as away:
            self._lost(away)
        self._beating = asyncio.create_task(self._beat(), name="budgets-lease")

    async def reserve(self, principal: Principal, tokens: int) -> Reservation:
        """Take what the request needs; raises `Busy`, `QuotaExhausted` or `Unavailable`, and then takes nothing."""
        tenant, key = principal.policy.tenant_budget, principal.policy.key_budget
        if not (_limited(tenant) or _limited(key)):
            return UNCOUNTED
        return await self._reserve(principal, max(0, tokens))

    async def _reserve(self, principal: Principal, tokens: int) -> Reservation:
        claims, whose = _claims(principal)
        asked = answers.Asked(whose, requests=1, tokens=tokens)
        since = self._monotonic()
        for _ in range(FENCED_ATTEMPTS):
            if self._away or self._held + len(self._untold) >= HELD_MAXIMUM:
                raise _unavailable()
            number = next(self._numbers)
            answer = await self._take(Take(number, tokens, claims))
            if answer.known:
                break
        else:
            raise _unavailable()
        if not answer.granted:
            raise answers.refusal(asked, answer, place_free_seconds=self.place_free_seconds(answer))
        self._held += 1
        return Counted(asked, answer, self, number, tokens, claims, whose, since)

    async def _take(self, take: Take) -> Answer:
        try:
            return await self._answer(self._store.take(take))
        except (StoreAway, asyncio.CancelledError) as error:
            # It may have been taken, or may still be.
            self._untold[take.number] = End(take.number, None, doubtful=True)
            if isinstance(error, StoreAway):
                self._lost(error)
                raise _unavailable() from None
            self._tell_soon()
            raise

    async def amend(self, amend: Amend) -> Answer:
        """For the reservation: change what is held; raises `Unavailable`."""
        if self._away:
            raise _unavailable()
        try:
            answer = await self._answer(self._store.amend(amend))
        except StoreAway as away:
            self._lost(away)
            raise _unavailable() from None
        if not answer.known:
            logger.error("the store of budgets has lost a reservation")
            raise _unavailable()
        return answer

    def end(
        self, end: End, claims: tuple[Claim, ...], *, held_since: float
    ) -> Answer | Coroutine[Any, Any, Answer | None] | None:
        """For the reservation: tell the store of its end, now or as soon as it answers.

        How `claims` stand after it comes with the same answer; None: the store is told later.
        """
        self._held -= 1
        self._hold_seconds += _HOLD_WEIGHT * (self._monotonic() - held_since - self._hold_seconds)
        self._untold[end.number] = end
        if self._away:
            self._tell_soon()
            return None
        try:
            answer = self._store.end((end,), claims)
        except StoreAway as away:
            self._lost(away)
            return None
        if isinstance(answer, Answer):
            self._untold.pop(end.number, None)
            return answer
        return self._told(end, answer)

    async def _told(self, end: End, answer: Awaitable[Answer]) -> Answer | None:
        try:
            told = await self._within(answer)
        except StoreAway as away:
            self._lost(away)
            return None
        except asyncio.CancelledError:
            self._tell_soon()
            raise
        self._untold.pop(end.number, None)
        return told

    async def close(self) -> None:
        """Give back what this process still holds, and disconnect. A store that is away frees it by the lease."""
        if self._closed:
            return
        self._closed = self._away = True
        for task in (self._beating, self._telling):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._beating = self._telling = None
        try:
            await self._tell()
            await self._within(self._store.leave())
        except StoreAway as away:
            logger.warning("the store of budgets does not answer (%s): what is held ends with its lease", away)
        await self._store.close()

    async def _answer(self, answer: Answer | Awaitable[Answer]) -> Answer:
        return answer if isinstance(answer, Answer) else await self._within(answer)

    async def _within(self, operation: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await operation
        except TimeoutError:
            raise StoreAway(f"no answer within {ANSWER_SECONDS:g} seconds") from None

    def _lost(self, away: StoreAway) -> None:
        if not self._away:
            self._away = True
            logger.warning("the store of budgets does not answer (%s): requests with limits are refused", away)
        self._tell_soon()

    def _tell_soon(self) -> None:
        self._tell_again = True
        if not self._closed and (self._telling is None or self._telling.done()):
            self._telling = asyncio.create_task(self._tell_until_taken(), name="budgets-ends")

    async def _tell_until_taken(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while self._tell_again:
            self._tell_again = False
            try:
                await self._tell()
                await self._within(self._store.beat())
            except StoreAway as away:
                self._lost(away)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        if self._away:
            self._away = False
            logger.info("the store of budgets answers again")

    async def _tell(self) -> None:
        """Send every end that is kept. One may be sent twice: the store knows."""
        waiting = tuple(self._untold.values())
        for at in range(0, len(waiting), ENDS_AT_ONCE):
            ends = waiting[at : at + ENDS_AT_ONCE]
            await self._answer(self._store.end(ends))
            for end in ends:
                self._untold.pop(end.number, None)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            try:
                await self._within(self._store.beat())
            except StoreAway as away:
                self._lost(away)

    def place_free_seconds(self, answer: Answer) -> float:
        """An estimate: of n requests that last as long as others did of late, one ends after an n-th of that."""
        under_way = max(1, *(standing.under_way for standing in answer.standings))
        return max(0.1, self._hold_seconds / under_way)


def _limited(budget: Budget) -> bool:
    return not (
        budget.requests_per_minute is None
        and budget.tokens_per_minute is None
        and budget.concurrency is None
        and budget.tokens_per_day is None
        and budget.tokens_per_month is None
    )


def _claims(principal: Principal) -> tuple[tuple[Claim, ...], tuple[tuple[str, Budget], ...]]:
    """The accounts that limits apply to, and whose they are in words. Lengths keep names from running together."""
    tenant, policy = principal.tenant, principal.policy
    claims, whose = [], []
    if _limited(policy.tenant_budget):
        claims.append(Claim(f"t:{tenant}", policy.tenant_budget))
        whose.append(("this tenant", policy.tenant_budget))
    if _limited(policy.key_budget):
        claims.append(Claim(f"k{len(tenant)}:{tenant}:{principal.key_id}", policy.key_budget))
        whose.append(("this API key", policy.key_budget))
    return tuple(claims), tuple(whose)


def _unavailable() -> Unavailable:
    return Unavailable("The server cannot check your limits at the moment. Try again shortly.")
