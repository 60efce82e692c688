"""What is read from outside while the server runs: under load every few seconds, and thoroughly when it is at rest.

It knows processes, the metrics' text and the witness' file; it knows no load and passes no verdict.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import psutil

from tests.bench.soak import witness
from tests.bench.soak.server import Soaked
from tests.bench.speed import kernel
from tests.project import until
from tests.reckoning import REST, await_rest, samples

EVERY_SECONDS = 10.0
TICK_SECONDS = 1.0
SETTLE_SECONDS = 30.0
"""The longest wait, at rest, for what ends by itself a little later: sockets that close, a process that is replaced."""
REST_SECONDS = 120.0
WITNESS_SECONDS = 30.0
EXECUTOR = "asyncio"
"""Threads of asyncio's own executor, which starts them one by one as it needs them and keeps them."""
SHOWN = (*REST, "jubako_queue_depth", "jubako_admission_limit_sequences")
Sample = dict[str, Any]


def gauges(soaked: Soaked) -> dict[str, float]:
    """What the server says is under way; samples of one name are added up."""
    found = dict.fromkeys(SHOWN, 0.0)
    for name, value in samples(soaked.served).items():
        if (family := name.partition("{")[0]) in found:
            found[family] += value
    return found


def processes(soaked: Soaked) -> dict[str, dict[str, int]]:
    """Of each process of the server that lives: its number, memory, descriptors and threads."""
    found = {}
    for role, process in soaked.processes().items():
        try:
            found[role] = {
                "pid": process.pid,
                "own_bytes": kernel.own_bytes(process.pid),
                "resident_bytes": kernel.resident_bytes(process.pid),
                "descriptors": process.num_fds(),
                "threads": process.num_threads(),
            }
        except (psutil.Error, OSError, RuntimeError):  # it ended meanwhile
            continue
    return found


class Sampler(threading.Thread):
    """Samples until it is told to stop. `samples` are thorough, `ticks` are the serving process' memory alone."""

    def __init__(self, soaked: Soaked) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self.ticks: list[tuple[float, int]] = []
        self._soaked = soaked
        self._over = threading.Event()
        self._pid = soaked.processes()["serving"].pid

    def run(self) -> None:
        """Until `stop`."""
        due = time.monotonic()
        while not self._over.wait(TICK_SECONDS):
            try:
                self.ticks.append((time.monotonic(), kernel.own_bytes(self._pid)))
                if time.monotonic() >= due:
                    due += EVERY_SECONDS
                    seen = {"at": time.monotonic(), "processes": processes(self._soaked)}
                    self.samples.append(seen | {"gauges": gauges(self._soaked)})
            except (httpx.HTTPError, OSError, RuntimeError, AssertionError):
                continue  # a server that is gone or held up is noticed elsewhere; what is missing here is missing

    def stop(self) -> None:
        """Stop, and wait for it."""
        self._over.set()
        self.join()


def rest(soaked: Soaked, first: Sample | None) -> Sample:
    """The server at rest: nothing under way, everything booked, and its parts as they were at the `first` rest.

    What stays different is in what is returned; it is waited for no longer than a while. Raises `AssertionError` if
    the server does not come to rest.
    """
    await_rest(soaked.served, REST_SECONDS)
    ends_at = time.monotonic() + SETTLE_SECONDS
    before = _at_rest(soaked)
    while True:
        time.sleep(TICK_SECONDS)
        now = _at_rest(soaked)
        settled = kept(now) == kept(before) and (first is None or kept(now) == kept(first))
        if settled or time.monotonic() > ends_at:
            return now
        before = now


def kept(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Of a sample at rest, what must be the same at each: counts of descriptors, threads and tasks."""
    return {what: parts(sample, what) for what in ("descriptors", "threads", "tasks")}


def parts(sample: Mapping[str, Any], what: str) -> dict[str, int]:
    """Counts of `descriptors` or `threads` by process, or of `tasks` by name."""
    if what == "tasks":
        return dict(sample["tasks"])
    found = {role: one[what] for role, one in sample["processes"].items()}
    if what == "threads" and "serving" in found:
        found["serving"] -= sample["python_threads"].get(EXECUTOR, 0)
    return found


def _at_rest(soaked: Soaked) -> Sample:
    seen: Sample = {"at": time.monotonic(), "gauges": gauges(soaked)}
    told = _witness(soaked)
    seen |= {"tasks": told["tasks"], "python_threads": told["threads"]}
    seen |= {"objects": told["objects"], "types": told["types"]}
    return seen | {"processes": processes(soaked)}


def _witness(soaked: Soaked) -> dict[str, Any]:
    witness.ask(soaked.processes()["serving"].pid, soaked.witness)
    until(soaked.witness.exists, "the witness in the serving process has written", WITNESS_SECONDS)
    told: dict[str, Any] = json.loads(soaked.witness.read_text())
    return told


def faults_in(lines: Iterable[str]) -> list[str]:
    """Lines of the server's log that no load should cause: errors, tracebacks, warnings of Python's about tasks."""
    marks = ('"level":"error"', '"level":"critical"', "Traceback (most recent", "never retrieved", "was destroyed")
    return [line[:500] for line in lines if any(mark in line.replace('": "', '":"') for mark in marks)]
