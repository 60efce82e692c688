"""How long the engine's steps take, for whoever finds from it how much it can do. Knows nothing of engines."""

from __future__ import annotations

LAG_FORGETTING = 0.99
"""Kept of the longest lag a step later."""


class StepClock:
    """Times steps by the engine's clock, and by ours only while this process falls behind it.

    Steps pile up while this process stands still, and then come all at once: by our clock one of a second and dozens
    of no time at all, which is not what they took. A process that is slower than its engine is further behind at each
    step; that is part of what a token takes.
    """

    def __init__(self) -> None:
        self._ended_at: float | None = None
        self._lag = 0.0

    def seconds(self, *, ended_at: float, told_at: float) -> float:
        """Seconds that the step took, zero for the first: it ended and was told of at these times, both monotonic."""
        lag = told_at - ended_at
        since = 0.0
        if self._ended_at is not None:
            since = max(0.0, ended_at - self._ended_at) + max(0.0, lag - self._lag)
        self._ended_at = ended_at
        self._lag = max(lag, LAG_FORGETTING * self._lag)
        return since
