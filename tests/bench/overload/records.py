"""What is known of one request when it is over. Knows nothing of how it was sent or what is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["complete", "refused", "failed", "cut"]
"""`complete`: ended with `[DONE]` and every token asked for. `refused`: 429 or 503. `cut`: still open when its stage
ended, and closed by the generator. `failed`: anything else."""


@dataclass(frozen=True)
class Record:
    """Times are seconds on the stage's clock, which is 0 when its first request is due."""

    tenant: str
    scheduled: float
    sent: float
    """When the connection was begun."""
    end: float
    outcome: Outcome
    status: int | None
    code: str | None
    retry_after_seconds: float | None
    asked_tokens: int
    chunks: tuple[float, ...]
    """When each piece of the reply that carries a token came."""

    @property
    def lag(self) -> float:
        """How much later than scheduled it was sent: the generator's own fault."""
        return self.sent - self.scheduled

    @property
    def time_to_first_token(self) -> float | None:
        """From when it was due, so that a generator that is late makes a server look worse, never better."""
        return self.chunks[0] - self.scheduled if self.chunks else None

    @property
    def time_per_output_token(self) -> float | None:
        """The mean between the first and the last token of a complete reply."""
        if self.outcome != "complete" or not self.chunks:
            return None
        return (self.chunks[-1] - self.chunks[0]) / max(1, self.asked_tokens - 1)

    @property
    def refusal_latency(self) -> float | None:
        """From sending to the whole refusal."""
        return self.end - self.sent if self.outcome == "refused" else None
