"""Who goes next: weighted fair among tenants by tokens served, under strict priorities with ageing.

Each tenant has a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models"): tokens it was
served, divided by its weight. Of the tenants that wait in the best priority, the one with the lowest counter goes next,
its oldest request first. A tenant that comes back is lifted to the counter last served: being idle gains no credit.

Every `ageing_seconds` that a tenant's oldest request has waited, the tenant moves up one priority, but never above the
best priority that itself waits: ageing lets the low pass the high, and leaves equals to their counters. A tenant that
moves up is lifted likewise.

A light tenant, which seldom waits, finds room at once: of the limit, others leave free the sequences that those who do
not wait usually have running (an average over some hundred steps) and at present do not.

The queue's bound is shared by the same weights: `Flow.crowding` is the larger of a tenant's parts of the queue's
requests and of its tokens, divided by its weight. Knows nothing of the engine or of time limits.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from jubako.gate.admission.request import Request

USUAL_STEPS = 200.0
"""Over how many steps it is averaged what a tenant has running."""

LIGHT = 0.5
"""Part of its share that a tenant usually has at most, for it to go as many times beyond when much comes at once."""

Key = tuple[float, int, "Flow"]
"""Sorted by a figure, then by an order that no two share; the flow itself is never compared."""


@dataclass(slots=True, eq=False)
class Flow:
    """One tenant: its counter, what it has waiting and running. There is one for each tenant that ever came."""

    tenant: str
    weight: float
    priority: int
    counter: float = 0.0
    lent: float = 0.0
    """What the counter was raised by while the tenant stands, aged, among those of a better priority."""
    running: int = 0
    """Sequences."""
    waiting: OrderedDict[int, Request] = field(default_factory=OrderedDict)
    """By arrival."""
    waiting_sequences: int = 0
    waiting_tokens: int = 0
    waiting_charge: float = 0.0
    usual: float = 0.0
    """Sequences it had running on average, as of `usual_at`, a step."""
    usual_at: int = 0
    absent_weight: float = 0.0
    """What it counts among those that will come back, as of `usual_at`; only while it neither waits nor runs."""
    crowding: float = 0.0
    level: int = 0
    """The priority it stands at by now, while it waits."""
    turn_key: Key | None = None
    age_key: Key | None = None
    crowd_key: Key | None = None
    least_key: Key | None = None
    calm_key: Key | None = None
    busy_key: Key | None = None

    @property
    def oldest(self) -> Request:
        """The request that goes first."""
        return next(iter(self.waiting.values()))

    @property
    def newest(self) -> Request:
        """The request that would go last."""
        return next(reversed(self.waiting.values()))


@dataclass(slots=True)
class Band:
    """What waits in one priority, as its tenants' policies say; ageing does not show here."""

    flows: int = 0
    weight: float = 0.0
    requests: int = 0
    sequences: int = 0
    charge: float = 0.0
    served: float = 0.0
    """Counters of its tenants, times their weights."""
    least: SortedList[Key] = field(default_factory=SortedList)
    """Tenants by what they have running for their weight."""
    calm: SortedList[Key] = field(default_factory=SortedList)
    """The same by what they usually have running."""


@dataclass(slots=True)
class Absent:
    """Tenants that have nothing waiting, all together: what they have running, and usually have."""

    running: int = 0
    usual: float = 0.0
    usual_at: int = 0
    absent_weight: float = 0.0
    """Of those that run nothing either, each counted by how likely it has something at a time."""


class Fairness:
    """All tenants, indexed: each change of one costs time logarithmic in their number, whatever the queue's length."""

    def __init__(self, *, ageing_seconds: float, queue_requests: int, queue_tokens: int) -> None:
        self.bands: dict[int, Band] = {}
        """Priorities in which something waits."""
        self.requests = 0
        self.tokens = 0
        """Waiting, of all tenants."""
        self._ageing_seconds = ageing_seconds
        self._queue_requests = queue_requests
        self._queue_tokens = queue_tokens
        self._flows: dict[str, Flow] = {}
        self._order = itertools.count()
        self._reached: dict[int, float] = {}
        """Counter of whoever started last, by the priority it stood at: tenants of one compare with nobody else."""
        self._step = 0
        self._absent = Absent()
        self._active = 0
        self._active_weight = 0.0
        self._top = 1 << 62
        """The best priority ever seen: nobody ages above it."""
        self._turns: dict[int, SortedList[Key]] = {}
        self._ages: SortedList[Key] = SortedList()
        self._crowds: SortedList[Key] = SortedList()
        self._busy: SortedList[Key] = SortedList()

    def advance(self) -> None:
        """The engine took a step: the clock of what is usual."""
        self._step += 1

    def flow(self, request: Request) -> Flow:
        """The request's tenant."""
        return self._flows[request.principal.tenant]

    def arrive(self, request: Request, now: float) -> Flow:
        """Put a request at the end of its tenant's queue. The tenant's weight and priority are those it comes with."""
        flow = self._come(request)
        flow.waiting[request.number] = request
        flow.waiting_sequences += request.sequences
        flow.waiting_tokens += request.expected_tokens
        flow.waiting_charge += request.charge
        self._index(flow, now)
        if flow.priority < self._top:
            self._raise_top(flow.priority, now)
        return flow

    def pass_by(self, request: Request, now: float) -> None:
        """Let a request run that never waits, as nobody does: what `arrive` and `start` come to, in one go."""
        flow = self._come(request)
        flow.level = flow.priority
        self._top = min(self._top, flow.priority)
        self._run(flow, request)
        self._index(flow, now)

    def withdraw(self, request: Request, now: float) -> None:
        """Take a waiting request out, wherever it stands."""
        flow = self.flow(request)
        self._unindex(flow)
        self._take(flow, request)
        self._index(flow, now)

    def start(self, request: Request, now: float) -> None:
        """Let a waiting request run; its tenant is charged with what the request is expected to use."""
        flow = self.flow(request)
        self._unindex(flow)
        self._take(flow, request)
        self._run(flow, request)
        self._index(flow, now)

    def end(self, request: Request, correction: float, now: float) -> None:
        """A running request ended; `correction` is what it used beyond its charge, or negative."""
        flow = self.flow(request)
        self._unindex(flow)
        flow.running -= request.sequences
        flow.counter += correction / flow.weight
        self._index(flow, now)

    def next(self, now: float) -> Request | None:
        """The request whose turn it is."""
        while self._ages and self._ages[0][0] <= now:
            flow = self._ages[0][2]
            self._unindex(flow)
            self._index(flow, now)
        if not self.bands:
            return None
        best = min(self.bands)
        return min(turns[0] for level, turns in self._turns.items() if level <= best)[2].oldest

    def least_served(self) -> tuple[Request, ...]:
        """In the best priority, the first requests of those that have, and usually have, least for their weight."""
        if not self.bands:
            return ()
        band = self.bands[min(self.bands)]
        return band.least[0][2].oldest, band.calm[0][2].oldest

    def share(self, flow: Flow, limit: int) -> float:
        """Sequences that a tenant may call its own of `limit`, among the tenants that wait or run; at least one."""
        return max(1.0, limit * flow.weight / self._active_weight)

    def within_share(self, request: Request, limit: int) -> bool:
        """Whether the tenant would stay within its share of `limit`, also if those come that usually have something."""
        flow = self.flow(request)
        self._average(self._absent)
        weights = self._active_weight + self._absent.absent_weight
        return (flow.running + request.sequences) * weights <= limit * flow.weight

    def underserved(self, request: Request, limit: int) -> bool:
        """Whether the tenant stays within its share while another has more, or is light beside a heavy one."""
        flow = self.flow(request)
        busiest = self._busiest_but(flow)
        if busiest is None:
            return False
        if busiest.running > self.share(busiest, limit) and flow.running + request.sequences <= self.share(flow, limit):
            return True
        if busiest.running + 1 <= self.share(busiest, limit) or self._is_light(busiest, limit):
            return False
        peak = self.share(flow, limit) / LIGHT
        return self._is_light(flow, limit) and flow.running + request.sequences <= peak

    def _busiest_but(self, flow: Flow) -> Flow | None:
        """Of the others, the tenant with most running for its weight."""
        for _, _, other in reversed(self._busy[-2:]):
            if other is not flow:
                return other
        return None

    def _is_light(self, flow: Flow, limit: int) -> bool:
        """Whether a tenant usually has far less than its share: then its peaks may go beyond."""
        self._average(flow)
        return flow.usual <= LIGHT * self.share(flow, limit)

    def reserve(self, spare: int) -> int:
        """Sequences to leave free for tenants that do not wait; `spare` more than the limit are theirs in any case.

        Their mean stays within the limit, so that the pace holds; their peaks go beyond it, as far as they may.
        """
        absent = self._absent
        self._average(absent)
        usual = max(absent.usual, absent.usual + 2.0 * math.sqrt(absent.usual) - spare)
        return max(0, round(usual) - absent.running)

    def within_part(self, flow: Flow) -> bool:
        """Whether what the tenant has waiting is no more than its part of a full queue; a single request is."""
        return len(flow.waiting) == 1 or flow.crowding * sum(band.weight for band in self.bands.values()) <= 1.0

    def most_crowding(self) -> Flow:
        """The tenant that has most of the queue for its weight; something must wait."""
        return self._crowds[-1][2]

    def turns_until(self, flow: Flow) -> float:
        """Sequences that start until the tenant's newest request has, itself included.

        The others of its priority are served until their counters reach what its own will be by then.
        """
        band = self.bands[flow.priority]
        above = sum(other.sequences for priority, other in self.bands.items() if priority < flow.priority)
        others = band.sequences - flow.waiting_sequences
        charge = band.charge - flow.waiting_charge
        if others <= 0 or charge <= 0.0:
            return float(above + flow.waiting_sequences)
        reached = flow.counter + (flow.waiting_charge - flow.newest.charge) / flow.weight
        served = reached * (band.weight - flow.weight) - (band.served - flow.counter * flow.weight)
        return above + flow.waiting_sequences + others * min(max(served / charge, 0.0), 1.0)

    def _come(self, request: Request) -> Flow:
        """The tenant of a request that comes, out of every index, as its policy is now; idle times gave no credit."""
        policy = request.principal.policy
        flow = self._flows.get(request.principal.tenant)
        if flow is None:
            flow = Flow(request.principal.tenant, policy.weight, policy.priority)
            self._flows[flow.tenant] = flow
        self._unindex(flow)
        if not flow.waiting:
            flow.counter = max(flow.counter - flow.lent, self._entry(policy.priority))
            flow.lent = 0.0
        flow.weight, flow.priority = policy.weight, policy.priority
        return flow

    def _run(self, flow: Flow, request: Request) -> None:
        flow.running += request.sequences
        self._reached[flow.level] = max(self._reached.get(flow.level, 0.0), flow.counter)
        flow.counter += request.charge / flow.weight

    def _take(self, flow: Flow, request: Request) -> None:
        del flow.waiting[request.number]
        flow.waiting_sequences -= request.sequences
        flow.waiting_tokens -= request.expected_tokens
        flow.waiting_charge = flow.waiting_charge - request.charge if flow.waiting else 0.0

    def _raise_top(self, priority: int, now: float) -> None:
        """Whoever had aged to the old top may go on; happens once for each priority that is ever better than all."""
        self._top = priority
        for flow in self._flows.values():
            if flow.waiting:
                self._unindex(flow)
                self._index(flow, now)

    def _unindex(self, flow: Flow) -> None:
        """Take a tenant out of every index and sum, so that it may change."""
        if flow.waiting or flow.running:
            self._active -= 1
            # From nothing, not by subtraction: rounding must not outlive the tenants it came from.
            self._active_weight = self._active_weight - flow.weight if self._active else 0.0
        if flow.busy_key is not None:
            self._busy.remove(flow.busy_key)
            flow.busy_key = None
        self._average(flow)
        if flow.turn_key is None or flow.crowd_key is None or flow.least_key is None or flow.calm_key is None:
            self._average(self._absent)
            self._absent.running -= flow.running
            self._absent.usual = max(0.0, self._absent.usual - flow.usual)
            self._absent.absent_weight = max(0.0, self._absent.absent_weight - flow.absent_weight)
            flow.absent_weight = 0.0
            return
        turns = self._turns[flow.level]
        turns.remove(flow.turn_key)
        if not turns:
            del self._turns[flow.level]
        self._crowds.remove(flow.crowd_key)
        if flow.age_key is not None:
            self._ages.remove(flow.age_key)
        band = self.bands[flow.priority]
        band.least.remove(flow.least_key)
        band.calm.remove(flow.calm_key)
        flow.turn_key = flow.crowd_key = flow.age_key = flow.least_key = flow.calm_key = None
        self.requests -= len(flow.waiting)
        self.tokens -= flow.waiting_tokens
        band.flows -= 1
        band.weight -= flow.weight
        band.requests -= len(flow.waiting)
        band.sequences -= flow.waiting_sequences
        band.charge -= flow.waiting_charge
        band.served -= flow.counter * flow.weight
        if not band.flows:
            del self.bands[flow.priority]

    def _index(self, flow: Flow, now: float) -> None:
        """Put a tenant back into every index and sum, as it is now."""
        order = next(self._order)
        if flow.waiting or flow.running:
            self._active += 1
            self._active_weight += flow.weight
        if flow.running:
            flow.busy_key = (flow.running / flow.weight, order, flow)
            self._busy.add(flow.busy_key)
        if not flow.waiting:
            self._average(self._absent)
            self._absent.running += flow.running
            self._absent.usual += flow.usual
            if not flow.running:
                flow.absent_weight = flow.weight * min(1.0, flow.usual)
                self._absent.absent_weight += flow.absent_weight
            return
        self._age(flow, order, now)
        flow.turn_key = (flow.counter, order, flow)
        self._turns.setdefault(flow.level, SortedList()).add(flow.turn_key)
        part = max(len(flow.waiting) / self._queue_requests, flow.waiting_tokens / self._queue_tokens)
        flow.crowding = part / flow.weight
        flow.crowd_key = (flow.crowding, order, flow)
        self._crowds.add(flow.crowd_key)
        self.requests += len(flow.waiting)
        self.tokens += flow.waiting_tokens
        band = self.bands.setdefault(flow.priority, Band())
        flow.least_key = (flow.running / flow.weight, order, flow)
        band.least.add(flow.least_key)
        flow.calm_key = (flow.usual / flow.weight, order, flow)
        band.calm.add(flow.calm_key)
        band.flows += 1
        band.weight += flow.weight
        band.requests += len(flow.waiting)
        band.sequences += flow.waiting_sequences
        band.charge += flow.waiting_charge
        band.served += flow.counter * flow.weight

    def _average(self, tenants: Flow | Absent) -> None:
        """Bring what is usual up to this step; what runs has not changed since the last time."""
        if tenants.usual_at != self._step:
            kept = math.exp((tenants.usual_at - self._step) / USUAL_STEPS)
            tenants.usual = tenants.running + (tenants.usual - tenants.running) * kept
            tenants.absent_weight *= kept
            tenants.usual_at = self._step

    def _entry(self, level: int) -> float:
        """The counter that a newcomer of a priority is lifted to: that of who started last, so that it is next.

        Never above the least of those who wait: it would have to wait until all of them had caught up.
        """
        reached = self._reached.get(level, 0.0)
        turns = self._turns.get(level)
        return min(reached, turns[0][0]) if turns else reached

    def _age(self, flow: Flow, order: int, now: float) -> None:
        """Find the priority that the tenant stands at by now, and when it moves up next."""
        since = flow.oldest.arrived_at
        moves = max(0, int((now - since) / self._ageing_seconds))
        flow.level = max(flow.priority - moves, min(flow.priority, self._top))
        flow.counter -= flow.lent
        flow.lent = 0.0
        if flow.level < flow.priority:
            # No credit among those above for what was never served below, and no debt after the return.
            flow.lent = max(0.0, self._entry(flow.level) - flow.counter)
            flow.counter += flow.lent
        if flow.level > self._top:
            # Counted from what was reached, so that rounding cannot make the same move due for ever.
            flow.age_key = (since + (flow.priority - flow.level + 1) * self._ageing_seconds, order, flow)
            self._ages.add(flow.age_key)
