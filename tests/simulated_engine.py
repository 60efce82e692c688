"""An engine of discrete events in front of which admission decides: seeded, no clock of its own.

A step takes `base + each * n + prompt * p` seconds, with noise; each running sequence generates one token in it, and
the first step of a sequence computes its whole prompt. Callers leave as soon as they are refused.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jubako.engine.step_clock import StepClock
from jubako.errors import Refusal
from jubako.gate.admission.request import Request, State
from jubako.gate.admission.scheduler import Scheduler
from jubako.sections import AdmissionSettings
from jubako.vocabulary import Budget, Demand, Limits, Policy, Principal, Step, Usage

LIMITS = Limits(*([1] * len(dataclasses.fields(Limits))))

SMOLLM2 = (0.036, 0.0029, 0.001)
"""Seconds of a step: base, each sequence, each prompt token; the first two fitted to the demo model on two cores."""


def settings(**changes: float) -> AdmissionSettings:
    """Settings of a queue that is large and slow to age, with `changes`."""
    values = {
        "time_per_output_token_seconds": 0.15,
        "queue_requests": 1000,
        "queue_tokens": 10_000_000,
        "ageing_seconds": 5.0,
    }
    return AdmissionSettings.model_validate(values | changes)


def principal(tenant: str = "a", *, weight: float = 1.0, priority: int = 1, queue_seconds: float = 1.5) -> Principal:
    """A tenant with such a policy."""
    policy = Policy(
        models=None,
        scopes=frozenset(),
        weight=weight,
        priority=priority,
        deadline_seconds=600.0,
        queue_seconds=queue_seconds,
        limits=LIMITS,
        tenant_budget=Budget(),
        key_budget=Budget(),
    )
    return Principal(tenant, f"key-{tenant}", frozenset(), policy)


def demand(*, prompt: int = 20, output: int = 64, sequences: int = 1) -> Demand:
    """A request for `sequences` choices of at most `output` tokens."""
    return Demand("model", 1, sequences, prompt, output, grammar=False)


@dataclass(slots=True)
class Arrival:
    """A request that will come, and what became of it."""

    at: float
    principal: Principal
    demand: Demand
    generates: int
    """Tokens that each of its sequences will really have."""
    deadline_seconds: float = 600.0
    usage: Usage = field(default_factory=Usage)
    refusal: Refusal | None = None
    refused_at: float = 0.0
    started_at: float = 0.0
    first_token_at: float = 0.0
    ended_at: float = 0.0
    done: int = 0

    @property
    def time_to_first_token(self) -> float:
        """Seconds from arrival."""
        return self.first_token_at - self.at

    @property
    def time_per_output_token(self) -> float:
        """Seconds from each token to the next."""
        return (self.ended_at - self.first_token_at) / max(1, self.done - 1)

    def good(self) -> bool:
        """Whether it was answered in time: the first token within two seconds, the others within 0.2 of each other."""
        return self.ended_at > 0.0 and self.time_to_first_token <= 2.0 and self.time_per_output_token <= 0.2


class SimulatedEngine:
    """Arrivals go through a scheduler of its own into steps."""

    def __init__(
        self,
        admission: AdmissionSettings,
        *,
        ceiling: int = 32,
        coefficients: tuple[float, float, float] = SMOLLM2,
        noise: float = 0.05,
        pauses: float = 0.0,
        seed: int = 1,
    ) -> None:
        self.coefficients = coefficients
        self.shape: Callable[[int, int], float] = self._linear
        self.now = 0.0
        self.steps: list[Step] = []
        self.limits: list[int] = []
        self.scheduler = Scheduler(admission, ceiling=ceiling, started=self._started, evicted=self._evicted)
        self._noise = noise
        self._pauses = pauses
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrivals: dict[Request, Arrival] = {}
        self._batch: dict[Request, Arrival] = {}
        self._stepping = False
        self._clock = StepClock()
        self._idle = True
        self._stands_until = 0.0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, arrivals: Iterable[Arrival], *, until: float = float("inf")) -> None:
        """Let the arrivals come and everything end, or go on `until` then."""
        for arrival in arrivals:
            self.at(arrival.at, lambda arrival=arrival: self.offer(arrival))  # type: ignore[misc]
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def stand_still(self, when: float, seconds: float) -> None:
        """Have what is in front of the engine stand still for a while; the engine goes on with what it has."""
        self.at(when, lambda: setattr(self, "_stands_until", when + seconds))

    def offer(self, arrival: Arrival) -> None:
        """Let one arrival come now."""
        if self.now < self._stands_until:
            self.at(self._stands_until, lambda: self.offer(arrival))
            return
        arrival.at = self.now
        try:
            request = self.scheduler.offer(
                arrival.principal,
                arrival.demand,
                arrival.usage,
                deadline_at=self.now + arrival.deadline_seconds,
                now=self.now,
            )
        except Refusal as refusal:
            arrival.refusal, arrival.refused_at = refusal, self.now
            return
        self._arrivals[request] = arrival
        if request.state is State.RUNNING:
            self._started(request)
        else:
            self.at(request.expires_at, lambda: self._expire(request))

    def _expire(self, request: Request) -> None:
        if self.now < self._stands_until:
            self.at(self._stands_until, lambda: self._expire(request))
        elif request.state is State.WAITING:
            self._evicted(request, self.scheduler.expire(request, self.now))

    def _evicted(self, request: Request, refusal: Refusal) -> None:
        arrival = self._arrivals.pop(request)
        arrival.refusal, arrival.refused_at = refusal, self.now

    def _started(self, request: Request) -> None:
        arrival = self._arrivals[request]
        arrival.started_at = self.now
        self._batch[request] = arrival
        if not self._stepping:
            self._idle = True
            self._begin_step()

    def _linear(self, sequences: int, prompt_tokens: int) -> float:
        base, each, prompt = self.coefficients
        return base + each * sequences + prompt * prompt_tokens

    def _begin_step(self) -> None:
        self._stepping = bool(self._batch)
        if not self._stepping:
            return
        batch = dict(self._batch)
        prompts = sum(arrival.demand.prompt_tokens for arrival in batch.values() if not arrival.done)
        running = sum(request.sequences for request in batch)
        seconds = self.shape(running, prompts) * max(0.5, self._random.gauss(1.0, self._noise))
        if self._random.random() < self._pauses:
            seconds += 1.0
        self.at(self.now + seconds, lambda: self._end_step(batch, running, prompts))

    def _end_step(self, batch: dict[Request, Arrival], running: int, prompts: int) -> None:
        ended = []
        for request, arrival in batch.items():
            if not arrival.done:
                arrival.first_token_at = arrival.usage.first_token_at = self.now
                arrival.usage.prompt_tokens = arrival.demand.prompt_tokens
            arrival.done += 1
            arrival.usage.generated_tokens += request.sequences
            if arrival.done >= arrival.generates:
                arrival.ended_at = self.now
                ended.append(request)
        for request in ended:
            del self._batch[request]
        if self.now < self._stands_until:
            ended_at = self.now
            self.at(self._stands_until, lambda: self._tell(ended_at, running, prompts, ended))
        else:
            self._tell(self.now, running, prompts, ended)
        self._begin_step()

    def _tell(self, ended_at: float, running: int, prompts: int, ended: list[Request]) -> None:
        seconds = self._clock.seconds(ended_at=ended_at, told_at=self.now)
        step = Step(self.now, 0.0 if self._idle else seconds, running, prompts, running)
        self._idle = False
        self.steps.append(step)
        self.scheduler.observe(step, self.now)
        self.limits.append(self.scheduler.capacity.limit)
        for request in ended:
            del self._arrivals[request]
            self.scheduler.finish(request, self.now)


def poisson(
    rate: float,
    seconds: float,
    *,
    who: Principal | None = None,
    prompt: int = 20,
    output: int = 64,
    bound: int | None = None,
    seed: int = 1,
) -> list[Arrival]:
    """Arrivals that do not wait for each other, `rate` a second."""
    chance = random.Random(f"{seed} {rate}")
    who = who or principal()
    arrivals, now = [], 0.0
    while (now := now + chance.expovariate(rate)) < seconds:
        arrivals.append(Arrival(now, who, demand(prompt=prompt, output=bound or output), output))
    return arrivals


def percentile(values: Iterable[float], part: float) -> float:
    """The value that `part` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
