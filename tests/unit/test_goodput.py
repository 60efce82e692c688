"""Goodput of an engine under overload is that of its peak."""

from __future__ import annotations

import pytest

from tests.simulated_engine import SimulatedEngine, percentile, poisson, settings


@pytest.mark.parametrize("seed", [1, 2])
def test_goodput_at_eight_times_what_can_be_served_is_that_of_the_peak(seed: int) -> None:
    """At two, four and eight times at least nine tenths; and all who are served are served in time."""
    goodput = {}
    for load in (0.5, 1, 2, 4, 8):
        arrivals = poisson(3.85 * load, 120.0, seed=seed)
        SimulatedEngine(settings(), pauses=0.002, seed=seed).run(arrivals)
        served = [arrival for arrival in arrivals if arrival.ended_at]
        goodput[load] = sum(arrival.good() for arrival in served) / 120.0
        assert percentile([arrival.time_to_first_token for arrival in served], 0.95) <= 2.0
        expired = [arrival for arrival in arrivals if arrival.refusal and arrival.refused_at > arrival.at]
        assert len(expired) <= 0.02 * len(arrivals)
    assert min(goodput[load] for load in (2, 4, 8)) >= 0.9 * max(goodput.values())


def test_requests_that_use_less_than_they_may_do_not_starve_the_engine() -> None:
    """Bounds of 1,024 tokens and replies of 64: the door learns what replies really are."""
    arrivals = poisson(8.0, 120.0, bound=1024)
    SimulatedEngine(settings()).run(arrivals)
    assert sum(arrival.good() for arrival in arrivals if arrival.at > 60.0) / 60.0 >= 3.0
