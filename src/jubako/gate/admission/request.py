"""One request on its way through admission: the record that fairness, forecast and scheduler share."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from jubako.vocabulary import Demand, Principal, Usage


class State(enum.Enum):
    """Where a request stands. Only the scheduler changes it, and only forwards."""

    WAITING = "waiting"
    RUNNING = "running"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class Request:
    """What is known of a request while it waits and runs. Times are monotonic seconds."""

    number: int
    """Order of arrival; unique."""
    principal: Principal
    demand: Demand
    usage: Usage
    arrived_at: float
    expected_output: int
    """Tokens each sequence is expected to generate."""
    prompt_weight: float
    """What a prompt token counts in the tenant's charge, beside an output token's 1."""
    state: State = State.WAITING
    expires_at: float = 0.0
    """When it has waited as long as it may."""
    started_at: float = 0.0

    @property
    def sequences(self) -> int:
        """What it takes of the engine's running limit."""
        return max(1, self.demand.sequences)

    @property
    def charge(self) -> float:
        """What its tenant is charged with when it starts: output tokens' worth that it is expected to use."""
        return self.prompt_weight * self.demand.prompt_tokens + self.sequences * self.expected_output

    @property
    def expected_tokens(self) -> int:
        """Prompt and output tokens it is expected to use."""
        return self.demand.prompt_tokens + self.sequences * self.expected_output
