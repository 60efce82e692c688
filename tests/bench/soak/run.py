"""The run: a server, legs of load with rests in between, and what was seen of both as one report.

It owns the order; what is measured and what is promised is said elsewhere.
"""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from tests.bench import machine, projects
from tests.bench.calling import call
from tests.bench.command import Report, Say
from tests.bench.soak import load, probe, sampling, verdicts
from tests.bench.soak.reader import Pace, Reader
from tests.bench.soak.sampling import Sampler
from tests.bench.soak.server import LOAD, PROBE, READER, SEQUENCES, Soaked, soaked
from tests.reckoning import samples

DISTRIBUTIONS = ("jubako", "vllm", "torch", "bentoml", "uvicorn", "uvloop")
AT_ONCE, PROBES_AT_ONCE = 12, 2
LEG_SECONDS, LEGS = 140.0, 6
"""About as long is a leg, and there are no fewer; an even number, so that halves are of whole legs."""
WARM_SECONDS = 45.0
REST_SECONDS = 5.0
"""What a rest takes when nothing hinders it."""
SLOW_SHARE = 2 / 3
STALLED_SECONDS = 30.0
"""The product's own; in a short run less, so that a slow reader is cut within its turn there too."""
GRACE_SECONDS = 240.0
SEED = 7


def run(folder: Path, command: str, minutes: float, say: Say) -> Report:
    """Soak a server for about so many minutes; `folder` keeps what it wrote."""
    count = max(LEGS, 2 * round(minutes * 60 / LEG_SECONDS / 2))
    warm_seconds = min(WARM_SECONDS, minutes * 60 / 6)
    leg_seconds = (minutes * 60 - warm_seconds) / count - REST_SECONDS
    stalled_seconds = min(STALLED_SECONDS, leg_seconds * SLOW_SHARE / 2)
    say(f"starting the server; then {warm_seconds:.0f} s of warming up and {count} legs of {leg_seconds:.0f} s")
    with soaked(folder, stalled_seconds) as server:
        report = _begin(command, minutes, server)
        _leg(server, 0, warm_seconds)
        report["rests"].append(sampling.rest(server, None))
        sampler = Sampler(server)
        sampler.start()
        began = time.monotonic()
        try:
            for number in range(1, count + 1):
                _leg_and_rest(server, number, leg_seconds, report)
                say(_told(number, count, report))
        finally:
            sampler.stop()
        report["soak_minutes"] = (time.monotonic() - began) / 60
        report["samples"], report["ticks"] = sampler.samples, sampler.ticks
        report["books"] = _books(server)
        report["log"] = sampling.faults_in(server.served.log.splitlines())
    report["verdicts"] = [asdict(one) for one in verdicts.judge(report)]
    return report


def _begin(command: str, minutes: float, server: Soaked) -> Report:
    return {
        **machine.head(command, DISTRIBUTIONS),
        "minutes": minutes,
        "callers": {"load": AT_ONCE, "probe": PROBES_AT_ONCE, "reader": 1, "sequences": SEQUENCES},
        "settings": dict(server.settings),
        "rests": [],
        "legs": [],
        "faults": [],
    }


def _leg_and_rest(server: Soaked, number: int, seconds: float, report: Report) -> None:
    """One leg and the rest after it; what cannot be measured is named in `faults`, and the soak goes on."""
    try:
        report["legs"].append({"number": number} | _leg(server, number, seconds))
        report["rests"].append(sampling.rest(server, report["rests"][0]))
    except (RuntimeError, AssertionError, httpx.HTTPError, KeyError, subprocess.TimeoutExpired) as fault:
        if server.served.process.poll() is not None:
            raise RuntimeError(f"the server ended in leg {number}:\n{server.served.log[-3000:]}") from fault
        report["faults"].append(f"leg {number}: {str(fault)[:1000]}")


def _leg(server: Soaked, number: int, seconds: float) -> dict[str, Any]:
    """Load, probe and reader side by side, until all have come to their end."""
    port = projects.port(server.served.url)
    slow: tuple[Pace, float] = ("slow", seconds * SLOW_SHARE)
    quick: tuple[Pace, float] = ("quick", seconds * (1 - SLOW_SHARE))
    # In turns the first, so that what begins or ends with a leg is beside both.
    reader = Reader(port, server.keys[READER], [slow, quick] if number % 2 else [quick, slow])
    keys = {tenant: server.keys[tenant] for tenant in LOAD}
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as callers:
        most = seconds + GRACE_SECONDS
        loads = load.Plan(server.served.url, keys, seconds, AT_ONCE, SEED + number)
        loading = callers.submit(call, "soak.load", loads, most, "the load")
        asks = probe.Plan(port, server.keys[PROBE], seconds, PROBES_AT_ONCE, number * 10**6)
        probing = callers.submit(call, "soak.probe", asks, most, "the probe")
        reader.start()
        counts, probes = loading.result(), probing.result()
    reader.join(GRACE_SECONDS)
    return {
        "begun": begun,
        "ended": time.monotonic(),
        "load": counts,
        "probes": probes,
        "turns": [asdict(turn) for turn in reader.done],
    }


def _books(server: Soaked) -> str:
    """What is wrong with the books after all of it; empty if nothing is."""
    books = server.books
    try:
        books.assert_level()
        lines, held = len(books.audit), books.held()
    except AssertionError as fault:
        return f"audit and ledger differ: {str(fault)[:500]}"
    found = samples(server.served)
    counted = sum(value for name, value in found.items() if name.startswith("jubako_requests_total{"))
    if counted != lines:
        return f"the audit has {lines} requests, the metrics have {counted:.0f}"
    return f"{held} reservations are held" if held else ""


def _told(number: int, count: int, report: Report) -> str:
    if not report["legs"] or report["legs"][-1]["number"] != number:
        return f"leg {number} of {count} COULD NOT BE MEASURED: {report['faults'][-1]}"
    leg, rest = report["legs"][-1], report["rests"][-1]
    held = ", ".join(f"{role} {one['own_bytes'] / 2**20:.0f}" for role, one in rest["processes"].items())
    return (
        f"leg {number} of {count}: {leg['load']['requests']} requests, {len(leg['probes'])} probes; MiB at rest: {held}"
    )
