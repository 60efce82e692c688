"""How long, how much, how often: the plan of a whole run and that of a quick one. Numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.overload.measures import Slo


@dataclass(frozen=True)
class Trial:
    """One way to fill the server until it refuses."""

    tokens: int
    """Of each request, the one that is tried again included."""
    batch: int
    """Requests sent at once."""
    pause_seconds: float
    """Between two batches."""


@dataclass(frozen=True)
class Plan:
    """Everything that a run is made of."""

    seed: str
    slo: Slo
    tokens: tuple[int, int]
    """Of each reply, the least and the most: replies of one length would run in step, and end all at once."""
    levels: tuple[int, ...]
    """Requests at a time in the closed loops that find saturation."""
    multiples: tuple[float, ...]
    """Arrival rates of the sweep, in saturations."""
    settle_seconds: float
    """Load before what counts."""
    window_seconds: float
    """What counts is due within it."""
    level_seconds: float
    """What counts of each closed loop."""
    trials: tuple[Trial, ...]
    probe_seconds: float
    trial_seconds: float
    """A request that is still refused after this long ends the run."""
    rounds: int
    """How often B is measured alone and then together with A."""
    phase_seconds: float
    backlog_seconds: float
    quiet_share: float
    """B's rate, in saturations."""
    loud_factor: float
    """A's rate, in B's."""
    backlog_multiple: float
    """The rate of each tenant when both are backlogged, in saturations."""
    fairness_pace: float
    """What admission holds for fairness, in steps of a request alone: the machine says how long that is."""

    def at_latest(self, until: float) -> float:
        """The end of a stage whose counted requests are due before `until`: what is open cannot be in time any more."""
        return until + self.slo.longest_seconds(max(self.tokens)) + 1


SLO = Slo(time_to_first_token_seconds=2.0, time_per_output_token_seconds=0.2)

TRIALS = tuple(
    Trial(tokens, batch, pause) for tokens in (32, 64, 128, 192) for batch, pause in ((4, 0.1), (16, 0.05), (64, 0.05))
)

WHOLE = Plan(
    seed="jubako",
    slo=SLO,
    tokens=(32, 96),
    levels=(16, 32),
    multiples=(0.5, 0.75, 1, 2, 4, 8),
    settle_seconds=8,
    window_seconds=30,
    level_seconds=16,
    trials=TRIALS,
    probe_seconds=0.075,
    trial_seconds=30,
    rounds=3,
    phase_seconds=45,
    backlog_seconds=30,
    quiet_share=0.15,
    loud_factor=10,
    backlog_multiple=2,
    fairness_pace=1.5,
)

QUICK = Plan(
    seed="jubako",
    slo=SLO,
    tokens=(32, 96),
    levels=(16,),
    multiples=(0.5, 2, 8),
    settle_seconds=3,
    window_seconds=5,
    level_seconds=5,
    trials=TRIALS[4:6],
    probe_seconds=0.075,
    trial_seconds=30,
    rounds=1,
    phase_seconds=5,
    backlog_seconds=5,
    quiet_share=0.15,
    loud_factor=10,
    backlog_multiple=2,
    fairness_pace=1.5,
)
