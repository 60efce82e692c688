"""The server's life: starting, ready, draining, failed; and the requests that live in it.

Owns the phase, the register of requests in flight, the drain, and the watch over the engine's pulse. Knows nothing of
HTTP, of vLLM or of processes: what happens at the end is handed in.

Order at the end, whatever the cause: no new requests, then the running ones finish or are told, then the process goes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jubako.engine.port import VitalSigns
from jubako.errors import ClientGone, Refusal, Unavailable
from jubako.vocabulary import Phase, Readiness

logger = logging.getLogger(__name__)

STOOD_STILL_SECONDS = 1.0
"""A look at the engine that comes so much too late is told of, and begins the count of its silence anew."""


class Lease:
    """One request in flight. `interrupt` ends its task and leaves the reason for the task to tell."""

    def __init__(self, request_id: str, task: asyncio.Task[object]) -> None:
        self.request_id = request_id
        self.cause: Refusal | ClientGone | None = None
        self._task = task
        self._concluded = False

    def interrupt(self, cause: Refusal | ClientGone) -> None:
        """Cancel the request's task because of `cause`; the first cause stands."""
        if self.cause is None and (isinstance(cause, ClientGone) or not self._concluded):
            self.cause = cause
            self._task.cancel()

    def conclude(self) -> None:
        """Say that the request has its end, and only has to be sent: nothing but the caller's leaving interrupts it."""
        self._concluded = True


class Life:
    """Phase and requests in flight, of one process."""

    def __init__(self) -> None:
        self._readiness = Readiness(Phase.STARTING, "the engine is starting")
        self._leases: set[Lease] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def readiness(self) -> Readiness:
        """The phase, and why it is not ready if it is not."""
        return self._readiness

    @property
    def in_flight(self) -> int:
        """Requests that hold a lease."""
        return len(self._leases)

    def become_ready(self) -> bool:
        """Take traffic from now on; false if the end came first."""
        if self._readiness.phase is Phase.STARTING:
            self._readiness = Readiness(Phase.READY)
        return self._readiness.ready

    def doing(self, what: str) -> None:
        """Say what the start is busy with."""
        if self._readiness.phase is Phase.STARTING:
            self._readiness = Readiness(Phase.STARTING, what)

    def begin_draining(self) -> None:
        """Take no more requests."""
        if self._readiness.phase is not Phase.FAILED:
            self._readiness = Readiness(Phase.DRAINING, "the server is shutting down")

    def fail(self, reason: str) -> None:
        """Take no more requests, for good."""
        self._readiness = Readiness(Phase.FAILED, reason)

    def require_ready(self) -> None:
        """Raise `Unavailable` with the code of the phase unless ready."""
        phase = self._readiness.phase
        if phase is Phase.STARTING:
            raise Unavailable(f"The model is not ready yet: {self._readiness.reason}.", code="not_ready")
        if phase is Phase.DRAINING:
            raise Unavailable("The server is shutting down.", code="draining")
        if phase is Phase.FAILED:
            raise engine_lost()

    def explain(self, refusal: Refusal) -> Refusal:
        """`refusal` as the caller should hear it: an engine that goes while the server drains went because of that."""
        draining = self._readiness.phase is Phase.DRAINING
        return shutting_down() if draining and refusal.code == "engine_unavailable" else refusal

    @contextmanager
    def lease(self, request_id: str) -> Iterator[Lease]:
        """Register the current task as a request in flight for as long as the block runs."""
        task = asyncio.current_task()
        if task is None:  # pragma: no cover - a coroutine always runs in a task
            raise RuntimeError("lease() needs a running task")
        lease = Lease(request_id, task)
        self._leases.add(lease)
        self._empty.clear()
        try:
            yield lease
        finally:
            self._leases.discard(lease)
            if not self._leases:
                self._empty.set()

    def interrupt_all(self, cause: Callable[[], Refusal]) -> None:
        """End every request in flight, each with its own instance of the cause."""
        for lease in list(self._leases):
            lease.interrupt(cause())

    async def settled(self, timeout_seconds: float) -> bool:
        """Wait until no request is in flight; false if the time ran out."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def drain(self, drain_seconds: float, grace_seconds: float) -> None:
        """Let requests in flight finish within `drain_seconds`, then tell the rest and give them `grace_seconds`."""
        self.begin_draining()
        logger.info("draining: %d requests in flight, at most %g s", self.in_flight, drain_seconds)
        if not await self.settled(drain_seconds):
            logger.warning("drain time is over: ending %d requests", self.in_flight)
            self.interrupt_all(shutting_down)
            await self.settled(grace_seconds)

    async def watch(self, pulse: Callable[[], VitalSigns], *, stall_seconds: float, every_seconds: float) -> str:
        """Return what is wrong once the engine is dead, or has work but takes no step for `stall_seconds`.

        Time in which this process itself stood still (a paused container, a machine that is held) is not held against
        the engine: what it did meanwhile has yet to be read.
        """
        looked_at, judged_from = time.monotonic(), -math.inf
        processor = time.process_time()
        while True:
            now = time.monotonic()
            late = now - looked_at - every_seconds
            if late > STOOD_STILL_SECONDS:
                judged_from = now
                busy = time.process_time() - processor
                logger.warning("this process stood still for %.1f s, %.1f s of it at work of its own", late, busy)
            looked_at, processor = now, time.process_time()
            signs = pulse()
            if not signs.alive:
                return "the engine died"
            stalled = now - max(signs.last_step_at, judged_from)
            if signs.unfinished and stalled >= stall_seconds:
                return f"the engine has {signs.unfinished} unfinished requests and took no step for {stalled:.0f} s"
            await asyncio.sleep(every_seconds)


def engine_lost() -> Unavailable:
    """What callers are told when the engine is gone."""
    return Unavailable("The engine is not available. The request was not completed.", code="engine_unavailable")


def shutting_down() -> Unavailable:
    """What callers are told whose request did not finish within the drain time."""
    return Unavailable("The server is shutting down. The request was not completed.", code="draining")
