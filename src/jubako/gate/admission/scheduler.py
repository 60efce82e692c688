"""The decisions of admission: who starts now, who waits, who is refused and when to come back.

    offer -> RUNNING -> finish
          -> WAITING -> RUNNING | withdraw | expire | evicted
          -> refused

The time comes in with every call. Each call leaves nobody waiting who could start. Knows nothing of coroutines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

from jubako.errors import Busy, DeadlineExceeded, Refusal
from jubako.gate.admission.capacity import Capacity
from jubako.gate.admission.fairness import Fairness, Flow
from jubako.gate.admission.forecast import Forecast, Lengths
from jubako.gate.admission.request import Request, State
from jubako.sections import AdmissionSettings
from jubako.vocabulary import Demand, Principal, Step, Usage

HEADROOM = 2
"""An underserved tenant may go beyond the limit by one part in so many, and by at least one sequence."""
DOUBT = 0.02
"""A forecast is no better than this part of itself: nobody is told to come back sooner."""
MARGIN = 0.8
"""Part of the allowed wait that may be promised at the door: who waits and is refused all the same is refused late."""
RESERVE = 2
"""At most one part in so many of the limit is left free for tenants that do not wait."""
PATIENCE_STEPS = 10
"""For so many steps places are kept for a request that takes several at once; then one free place is enough."""


class Scheduler:
    """The queue and what runs behind it.

    `started` is called with each request that had to wait and may now run, `evicted` with each that had to make room in
    the queue, and why. Neither may call back into the scheduler.
    """

    def __init__(
        self,
        settings: AdmissionSettings,
        *,
        ceiling: int,
        started: Callable[[Request], None],
        evicted: Callable[[Request, Refusal], None],
    ) -> None:
        self.capacity = Capacity(target_seconds=settings.time_per_output_token_seconds, ceiling=ceiling)
        self._settings = settings
        self._fairness = Fairness(
            ageing_seconds=settings.ageing_seconds,
            queue_requests=settings.queue_requests,
            queue_tokens=settings.queue_tokens,
        )
        self._forecast = Forecast()
        self._lengths = Lengths()
        self._started = started
        self._evicted = evicted
        self._numbers = itertools.count()
        self._waiting_steps = 0
        self._kept_since: int | None = None
        """The step since which places are kept for a request of several sequences whose turn it is."""

    @property
    def running(self) -> int:
        """Sequences that run, as far as admission let them."""
        return self._forecast.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._fairness.requests

    @property
    def waiting_tokens(self) -> int:
        """Estimated tokens of all of them."""
        return self._fairness.tokens

    @property
    def depths(self) -> Mapping[int, int]:
        """Requests in the queue by their policies' priority; those with none are left out."""
        return {priority: band.requests for priority, band in list(self._fairness.bands.items())}

    def offer(self, principal: Principal, demand: Demand, usage: Usage, *, deadline_at: float, now: float) -> Request:
        """Let a request run, or put it in the queue with `expires_at` set; its state says which.

        Raises `DeadlineExceeded` when its time is up, `Busy` when it would wait too long or the queue is full. What can
        start at once is let in whatever is expected of it: an expectation is no reason to refuse an idle engine.
        """
        if now >= deadline_at:
            raise DeadlineExceeded("The request's time was up before it could be queued.")
        expected = self._lengths.expect(principal.tenant, demand.output_tokens)
        weight = self.capacity.prompt_weight
        request = Request(next(self._numbers), principal, demand, usage, now, expected, weight)
        if not self._fairness.requests and request.sequences <= self._unreserved:
            self._kept_since = None
            request.state, request.started_at = State.RUNNING, now
            self._fairness.pass_by(request, now)
            self._forecast.start(request)
            return request
        flow = self._fairness.arrive(request, now)
        self._waiting_steps += request.sequences * expected
        self._start_all(now, arriving=request)
        if request.state is State.WAITING:
            refusal = self._refusal_at_the_door(request, flow, deadline_at, now)
            if refusal is not None:
                self._leave_queue(request, now)
            # Whoever left for it, or it itself, may have stood before one that has room.
            self._start_all(now, arriving=request)
            if refusal is not None:
                raise refusal
        return request

    def withdraw(self, request: Request, now: float) -> None:
        """Take a waiting request out for free; nothing happens to any other."""
        if request.state is State.WAITING:
            self._leave_queue(request, now)
            self._start_all(now)

    def expire(self, request: Request, now: float) -> Refusal:
        """Take a request out that has waited as long as it may; what to tell it."""
        wait = self._wait_seconds(self._fairness.flow(request))
        allowed = request.expires_at - request.arrived_at
        self.withdraw(request, now)
        return self._too_long(wait, allowed)

    def finish(self, request: Request, now: float, *, completed: bool = True) -> None:
        """A running request ended; its usage is final. Works once.

        One that was not `completed` (its caller left, its deadline passed) says nothing of how long replies are.
        """
        if request.state is not State.RUNNING:
            return
        request.state = State.GONE
        self._forecast.end(request)
        usage = request.usage
        # Cached prompt tokens cost the engine nothing, so they cost the tenant no share.
        computed = max(0, usage.prompt_tokens - usage.cached_tokens)
        used = request.prompt_weight * computed + usage.generated_tokens
        self._fairness.end(request, used - request.charge, now)
        if completed and usage.generated_tokens:
            self._lengths.learn(
                request.principal.tenant, request.demand.output_tokens, usage.generated_tokens / request.sequences
            )
        self._start_all(now)

    def observe(self, step: Step, now: float) -> None:
        """The engine took a step: the limit may have moved."""
        self._forecast.advance()
        self._fairness.advance()
        self.capacity.observe(step)
        self._start_all(now)

    def could_start(self, now: float) -> bool:
        """Whether anything that waits has room; always false between calls at the same time."""
        return self._next(now) is not None

    def _start_all(self, now: float, *, arriving: Request | None = None) -> None:
        while (request := self._next(now)) is not None:
            first = self._fairness.next(now)
            if request is first:
                self._kept_since = None
            elif first is not None and first.sequences > 1 and self._kept_since is None:
                self._kept_since = self._forecast.step
            request.state, request.started_at = State.RUNNING, now
            self._waiting_steps -= request.sequences * request.expected_output
            self._fairness.start(request, now)
            self._forecast.start(request)
            if request is not arriving:
                self._started(request)

    def _next(self, now: float) -> Request | None:
        """The request that starts now, if one does: the one whose turn it is, or one that has headroom.

        Alone, a request has room whatever its size; otherwise within the limit, less what is left free for tenants that
        do not wait. Those places are theirs up to their shares: a tenant within its own need not leave any free. A
        tenant that has less than its share of what runs, or usually has, may go a little beyond, without a turn.

        Places are kept for a request that takes several, but not for long: it must neither keep others out of an engine
        that has room, nor be passed by them for ever. It then goes beyond the limit, and its tenant pays for all of it.
        """
        request = self._fairness.next(now)
        if request is None or self.running == 0:
            return request
        limit = self.capacity.limit
        beyond = min(self.capacity.ceiling, limit + max(1, limit // HEADROOM))
        free = self._unreserved
        if request.sequences > free:
            within = self._fairness.within_share(request, limit)
            reserve = 0 if within else min(limit // RESERVE, self._fairness.reserve(beyond - limit))
            free = limit - reserve - self.running
        if request.sequences <= free:
            return request
        if self._patience_over(request, free):
            return request if free > 0 else None
        for candidate in (request, *self._fairness.least_served()):
            fits = self.running + candidate.sequences <= beyond
            if fits and self._fairness.underserved(candidate, limit):
                return candidate
        return None

    @property
    def _unreserved(self) -> int:
        """Sequences that may start whatever is left free for others."""
        limit = self.capacity.limit
        return limit - limit // RESERVE - self.running

    def _patience_over(self, request: Request, free: int) -> bool:
        """Whether places were kept long enough for the request, which needs more than are `free`."""
        if request.sequences == 1:
            return False
        if self._kept_since is None and free > 0:
            self._kept_since = self._forecast.step
        return self._kept_since is not None and self._forecast.step - self._kept_since >= PATIENCE_STEPS

    def _leave_queue(self, request: Request, now: float) -> None:
        request.state = State.GONE
        self._waiting_steps -= request.sequences * request.expected_output
        self._fairness.withdraw(request, now)

    def _refusal_at_the_door(self, request: Request, flow: Flow, deadline_at: float, now: float) -> Refusal | None:
        """Why a request that is in the queue already may not stay there; None if it may, with room made for it."""
        pace = self._pace()
        allowed = min(request.principal.policy.queue_seconds, deadline_at - now - (1 + request.expected_output) * pace)
        wait = self._wait_seconds(flow)
        full = self._overfull
        if full and not self._fairness.within_part(flow):
            return self._queue_full(wait - MARGIN * allowed)
        if wait > MARGIN * allowed or allowed <= 0.0:
            return self._too_long(wait, max(0.0, allowed))
        while self._overfull:
            crowding = self._fairness.most_crowding()
            if crowding is flow or crowding.crowding <= flow.crowding:
                return self._queue_full(wait - MARGIN * allowed)
            victim = crowding.newest
            refusal = self._queue_full(0.0)
            self._leave_queue(victim, now)
            self._evicted(victim, refusal)
        request.expires_at = now + allowed
        return None

    @property
    def _overfull(self) -> bool:
        settings = self._settings
        return self._fairness.requests > settings.queue_requests or self._fairness.tokens > settings.queue_tokens

    def _pace(self) -> float:
        """Seconds of a step as it will be while there is a queue, but for the prompts of those who wait."""
        waiting = sum(band.sequences for band in self._fairness.bands.values())
        return self.capacity.decode_seconds(max(self.running, min(self.capacity.prospect, self.running + waiting)))

    @property
    def _mean_prompt_tokens(self) -> float:
        """Prompt tokens of those who wait, for each sequence."""
        sequences = sum(band.sequences for band in self._fairness.bands.values())
        prompts = self._fairness.tokens - self._waiting_steps
        return max(0.0, prompts / max(1, sequences))

    def _steps_until(self, start: float, *, besides: Request | None = None) -> float:
        """See `Forecast.steps_until`; the service of `besides`, who waits for it, is not part of its own wait."""
        waiting, steps = sum(band.sequences for band in self._fairness.bands.values()), self._waiting_steps
        if besides is not None and waiting > besides.sequences:
            waiting -= besides.sequences
            steps -= besides.sequences * besides.expected_output
        return self._forecast.steps_until(
            start, room=self.capacity.prospect - self.running, service_steps=1.0 + steps / max(1, waiting)
        )

    def _wait_seconds(self, flow: Flow) -> float:
        """How long the newest request of a tenant will wait, if nobody else comes."""
        turns = self._fairness.turns_until(flow)
        before = max(0.0, turns - flow.newest.sequences)
        # The prompts of those who start before are computed in steps of their own making, which no mean knows of.
        prompts = before * self._mean_prompt_tokens * self.capacity.prompt_seconds
        steps = self._steps_until(turns, besides=flow.newest)
        if flow.newest.sequences > 1:
            steps = min(steps, self._steps_until(before + 1.0, besides=flow.newest) + PATIENCE_STEPS)
        return steps * self._pace() + prompts

    def _queue_full(self, too_long_seconds: float) -> Busy:
        """To come back when enough have left the queue, and what is left of the wait is no longer than allowed."""
        fairness = self._fairness
        excess_requests = fairness.requests - self._settings.queue_requests
        excess_tokens = (fairness.tokens - self._settings.queue_tokens) * fairness.requests / max(1, fairness.tokens)
        sequences = sum(band.sequences for band in fairness.bands.values()) / max(1, fairness.requests)
        leave = math.ceil(max(1.0, excess_requests, excess_tokens)) * sequences
        pace = self._pace()
        seconds = max(pace, self._steps_until(leave) * pace, too_long_seconds)
        return Busy("The server's queue is full.", code="queue_full", retry_after_seconds=seconds)

    def _too_long(self, wait: float, allowed: float) -> Busy:
        """To come back when the wait, if nobody else came, would be no longer than allowed."""
        return Busy(
            "The request would wait longer in the queue than it may.",
            code="wait_too_long",
            retry_after_seconds=max(wait - MARGIN * allowed, DOUBT * wait, self._pace()),
        )
