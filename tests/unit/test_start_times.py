"""What a start took, told across the processes that it runs through."""

from __future__ import annotations

import os

import pytest
from prometheus_client import CollectorRegistry

from jubako.start_times import VARIABLE, StartPhase, StartTimes, begun, now
from jubako.telemetry.metrics import Metrics


def test_phases_follow_each_other_and_add_up() -> None:
    """Each is as long as the way from the end before it; one that is not known has no time of its own."""
    times = StartTimes(100.0)
    times.end(StartPhase.COMMAND, 102.0)
    times.end(StartPhase.ENGINE_LOADING, 110.0)
    times.end(StartPhase.ENGINE_PROCESS, 107.0)
    assert times.seconds == {
        StartPhase.COMMAND: 2.0,
        StartPhase.ENGINE_PROCESS: 5.0,
        StartPhase.ENGINE_LOADING: 3.0,
    }
    assert str(times) == "10.0 s (command 2.0, engine_process 5.0, engine_loading 3.0)"


def test_an_end_stands() -> None:
    """The worker imports the service's module as the arbiter did, and does not make its phases longer."""
    times = StartTimes(0.0)
    times.end(StartPhase.SETTINGS, 1.0)
    times.end(StartPhase.SETTINGS, 9.0)
    assert times.seconds == {StartPhase.SETTINGS: 1.0}


def test_no_phase_takes_less_than_nothing() -> None:
    """An end before the one before it is an overlap."""
    times = StartTimes(0.0)
    times.end(StartPhase.ENGINE_CONFIGURATION, 5.0)
    times.end(StartPhase.ENGINE_PROCESS, 4.0)
    times.end(StartPhase.ENGINE_LOADING, 6.0)
    assert list(times.seconds.values()) == [5.0, 0.0, 1.0]


def test_the_worker_goes_on_where_the_arbiter_ended() -> None:
    """A start is one start."""
    environment: dict[str, str] = {}
    arbiter = StartTimes(10.0)
    arbiter.end(StartPhase.VERIFICATION, 13.0)
    arbiter.pass_on(environment)
    worker = StartTimes.of_process(os.getpid(), environment)
    worker.end(StartPhase.WORKER, 14.0)
    assert worker.seconds == {StartPhase.VERIFICATION: 3.0, StartPhase.WORKER: 1.0}


@pytest.mark.parametrize("passed_on", ["", "nonsense", "[1]", '[1, {"no_phase": 2}]', '{"a": 1}', "[null, {}]"])
def test_what_cannot_be_read_does_not_end_a_start(passed_on: str) -> None:
    """Nobody's server fails to start for the sake of a figure."""
    times = StartTimes.of_process(os.getpid(), {VARIABLE: passed_on})
    times.end(StartPhase.COMMAND)
    assert times.seconds[StartPhase.COMMAND] >= 0


def test_a_process_began_before_now() -> None:
    """The kernel's clock and the process's own are the same one."""
    assert begun(os.getppid()) <= begun(os.getpid()) <= now()


def test_every_phase_is_a_series_from_the_start() -> None:
    """As 0 until the server is ready."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, ["m"], release="m/1", digest="d")

    def value(phase: StartPhase) -> float | None:
        return registry.get_sample_value("jubako_start_seconds", {"phase": phase.value})

    assert [value(phase) for phase in StartPhase] == [0.0] * len(StartPhase)
    metrics.started({StartPhase.SMOKE: 2.5})
    assert value(StartPhase.SMOKE) == 2.5
