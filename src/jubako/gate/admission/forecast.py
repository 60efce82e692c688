"""How long a request would wait: a clock of engine steps, and the step at which each running request should end.

All running sequences progress one token a step, so those that started together end together: a mean rate would be
wrong by as many times as run at once. Kept here is a sorted list of expected ends; the k-th in the queue starts at the
k-th of them. Beyond those that run now come rounds of the mean service. Counts in steps; knows nothing of seconds.
"""

from __future__ import annotations

from sortedcontainers import SortedList

from jubako.gate.admission.request import Request

TENANT_FORGETTING = 0.9
"""About ten requests of a tenant are remembered."""
ALL_FORGETTING = 0.99
PRIOR_REQUESTS = 2.0
LEAST_EXTENSION_STEPS = 4
"""An overdue request is looked at again no sooner than this, so that each step looks at few."""


class Lengths:
    """How much of the allowed output requests really use, for each tenant and in all; at first, all of it."""

    def __init__(self) -> None:
        self._all = (1.0, 1.0)
        self._tenants: dict[str, tuple[float, float]] = {}

    def expect(self, tenant: str, bound: int) -> int:
        """Output tokens expected of a sequence that may have `bound`."""
        ratios, count = self._tenants.get(tenant, (0.0, 0.0))
        in_all = self._all[0] / self._all[1]
        ratio = (ratios + PRIOR_REQUESTS * in_all) / (count + PRIOR_REQUESTS)
        return max(1, min(bound, round(ratio * bound)))

    def learn(self, tenant: str, bound: int, used: float) -> None:
        """A sequence that might have had `bound` tokens ended with `used`."""
        ratio = min(1.0, used / max(1, bound))
        ratios, count = self._tenants.get(tenant, (0.0, 0.0))
        self._tenants[tenant] = (TENANT_FORGETTING * ratios + ratio, TENANT_FORGETTING * count + 1.0)
        ratios, count = self._all
        self._all = (ALL_FORGETTING * ratios + ratio, ALL_FORGETTING * count + 1.0)


class Forecast:
    """When the running requests end, one entry a sequence."""

    def __init__(self) -> None:
        self.step = 0
        self._ends: SortedList[tuple[int, int, int]] = SortedList()
        self._running: dict[int, tuple[int, Request]] = {}

    @property
    def running(self) -> int:
        """Sequences."""
        return len(self._ends)

    def start(self, request: Request) -> None:
        """The request runs from the next step: one to compute the prompt, which gives the first token."""
        joins = 1 if self._ends else 0  # the step under way goes by without it
        self._add(self.step + joins + request.expected_output, request)

    def end(self, request: Request) -> None:
        """The request runs no more."""
        end, _ = self._running.pop(request.number)
        for index in range(request.sequences):
            self._ends.remove((end, request.number, index))

    def advance(self) -> None:
        """One step went by. What should have ended and has not is expected to take as long again, within its bound."""
        self.step += 1
        while self._ends and self._ends[0][0] < self.step:
            _, request = self._running[self._ends[0][1]]
            self.end(request)
            left = request.demand.output_tokens - request.usage.generated_tokens // request.sequences
            self._add(self.step + max(LEAST_EXTENSION_STEPS, min(left, request.expected_output)), request)

    def steps_until(self, start: float, *, room: int, service_steps: float) -> float:
        """Steps until the `start`-th sequence from now has started, where `room` may start at once.

        `room` is negative where more run than should: so many ends let nobody in. `service_steps` is the mean that a
        queued request takes.
        """
        place = int(start + 0.5) - 1 - max(0, room)
        if place < 0:
            return 0.0
        # One entry for each place: the ends that let someone in, then the places that are free and taken at once.
        closed = max(0, -room)
        rounds, index = divmod(place, max(1, len(self._ends) + room))
        index += closed
        first = self._ends[index][0] - self.step if index < len(self._ends) else service_steps
        return max(0.0, first) + rounds * service_steps

    def _add(self, end: int, request: Request) -> None:
        self._running[request.number] = (end, request)
        for index in range(request.sequences):
            self._ends.add((end, request.number, index))
