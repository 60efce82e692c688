"""Admission for coroutines: a request waits for its turn, no longer than it may, and leaves for free when cancelled.

All decisions are the scheduler's; here are futures, timers and the clock. Everything happens in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jubako.errors import Refusal
from jubako.gate.admission.request import Request, State
from jubako.gate.admission.scheduler import Scheduler
from jubako.sections import AdmissionSettings
from jubako.vocabulary import Demand, Principal, Step, Usage


class Ticket:
    """The right to run. Whoever holds it leaves once, in a `finally`; what the usage says then is what was used."""

    __slots__ = ("_leave", "queued_seconds")

    def __init__(self, leave: Callable[[bool], None], queued_seconds: float) -> None:
        self.queued_seconds = queued_seconds
        self._leave = leave

    def leave(self, *, completed: bool = True) -> None:
        """Make room for the next; say whether the request came to its own end. Further calls do nothing."""
        self._leave(completed)


@dataclass(slots=True)
class _Wait:
    """What ends the wait of one request: its turn or a refusal through the future, its time limit through the timer."""

    turn: asyncio.Future[None]
    timer: asyncio.TimerHandle


class Admission:
    """The gate's queue. Metrics read its properties; the engine's steps come in through `on_step`."""

    def __init__(
        self, settings: AdmissionSettings, *, ceiling: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._scheduler = Scheduler(settings, ceiling=ceiling, started=self._start, evicted=self._refuse)
        self._waiting: dict[Request, _Wait] = {}
        self._closed: Callable[[], Refusal] | None = None

    async def admit(self, principal: Principal, demand: Demand, usage: Usage, *, deadline_at: float) -> Ticket:
        """Wait for a turn; the ticket must be left.

        `deadline_at` is in the clock's time. `usage` is the record that the engine writes: it is read when the request
        ends. Raises `Busy` (`queue_full`, `wait_too_long`), `DeadlineExceeded`, or what `close` was given.
        """
        if self._closed is not None:
            raise self._closed()
        request = self._scheduler.offer(principal, demand, usage, deadline_at=deadline_at, now=self._clock())
        if request.state is State.WAITING:
            await self._turn(request)

        def leave(completed: bool) -> None:  # noqa: FBT001 - of `Ticket.leave` alone
            self._scheduler.finish(request, self._clock(), completed=completed)

        return Ticket(leave, request.started_at - request.arrived_at)

    def on_step(self, step: Step) -> None:
        """Take notice of a step of the engine."""
        self._scheduler.observe(step, self._clock())

    def close(self, cause: Callable[[], Refusal]) -> None:
        """Refuse everything that waits, and everything that comes from now on; what runs goes on."""
        self._closed = cause
        for request in list(self._waiting):
            # The refusal first: what is taken out must not start another that is about to be refused as well.
            self._refuse(request, cause())
        now = self._clock()
        for request in list(self._waiting):
            self._scheduler.withdraw(request, now)

    @property
    def running(self) -> int:
        """Sequences that were let in and have not left."""
        return self._scheduler.running

    @property
    def limit(self) -> int:
        """Sequences that may run at once, as found by now."""
        return self._scheduler.capacity.limit

    @property
    def queue_depths(self) -> Mapping[int, int]:
        """Requests that wait, by priority; priorities without any are left out."""
        return self._scheduler.depths

    @property
    def queue_tokens(self) -> int:
        """Estimated tokens of all requests that wait."""
        return self._scheduler.waiting_tokens

    async def _turn(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        delay_seconds = request.expires_at - request.arrived_at
        wait = _Wait(loop.create_future(), loop.call_later(delay_seconds, self._expire, request))
        self._waiting[request] = wait
        try:
            await wait.turn
        except BaseException:
            # Cancelled, perhaps in the very moment of its turn: then the place is given back.
            self._scheduler.withdraw(request, self._clock())
            self._scheduler.finish(request, self._clock())
            raise
        finally:
            wait.timer.cancel()
            del self._waiting[request]

    def _start(self, request: Request) -> None:
        turn = self._waiting[request].turn
        if not turn.done():
            turn.set_result(None)

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        turn = self._waiting[request].turn
        if not turn.done():
            turn.set_exception(refusal)

    def _expire(self, request: Request) -> None:
        if request.state is State.WAITING:
            self._refuse(request, self._scheduler.expire(request, self._clock()))
