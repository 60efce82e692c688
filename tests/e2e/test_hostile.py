"""Every hostile body against the real server, many at a time, beside a neighbour who notices nothing."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.contract.corpus import BASE
from tests.engine_metrics import await_rest
from tests.hostile import HOSTILE
from tests.hostile_sender import STALL_SECONDS, faults_of

if TYPE_CHECKING:
    from tests.project import Served
    from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LARGEST_GAP_SECONDS = 90.0
"""Ten times what a busy machine shows. A grammar that stalled the engine would hold it for minutes."""
LARGEST_GROWTH_BYTES = 300 << 20
PROMPT = {"model": BASE, "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


class Neighbour(threading.Thread):
    """Streams one completion after the other until it is told to stop; the last one is read to its end."""

    def __init__(self, server: Served, key: str) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.url}/v1/completions"
        self._client = httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=STALL_SECONDS)
        self._ending = threading.Event()
        self.streaming = threading.Event()
        self.streams = 0
        self.faults: list[str] = []
        self.largest_gap = 0.0

    def run(self) -> None:
        """Stream until the stop."""
        with self._client:
            while not self._ending.is_set() and not self.faults:
                try:
                    self._stream()
                except httpx.TransportError as error:
                    self.faults.append(repr(error))

    def _stream(self) -> None:
        last, seen_at = "", 0.0
        with self._client.stream("POST", self._url, json=PROMPT | {"max_tokens": 200, "stream": True}) as reply:
            if reply.status_code != httpx.codes.OK:
                self.faults.append(f"{reply.status_code}: {reply.read().decode()}")
                return
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    now = time.monotonic()
                    self.largest_gap = max(self.largest_gap, now - seen_at if seen_at else 0.0)
                    last, seen_at = line, now
                    self.streaming.set()
        self.streams += 1
        if last != "data: [DONE]":
            self.faults.append(f"a stream ended in {last}")

    def stop(self) -> None:
        """Let the stream under way end, and wait for it."""
        self._ending.set()
        self.join(2 * STALL_SECONDS)
        assert not self.is_alive(), "the neighbour's stream has no end"


def test_no_hostile_request_harms_the_server_or_a_neighbour(jubako_server: Served, keys: Keys) -> None:
    """Each is answered as it should be; a stream of another tenant goes on all the while; memory is given back."""
    neighbour = Neighbour(jubako_server, keys.of("blue"))
    headers = {"authorization": f"Bearer {keys.of('red')}"}
    with httpx.Client(base_url=jubako_server.url, headers=headers, timeout=STALL_SECONDS) as client:
        assert client.post("/v1/completions", json=PROMPT | {"max_tokens": 1}).status_code == httpx.codes.OK
        worker = jubako_server.worker()
        before = worker.memory_info().rss
        neighbour.start()
        try:
            assert neighbour.streaming.wait(STALL_SECONDS), neighbour.faults
            faults = faults_of(client, HOSTILE)
        finally:
            neighbour.stop()
        assert not faults, "\n".join(faults)
        assert not neighbour.faults
        assert neighbour.streams > 0
        assert neighbour.largest_gap < LARGEST_GAP_SECONDS
        assert httpx.get(f"{jubako_server.url}/readyz", timeout=120).status_code == httpx.codes.OK
        await_rest(jubako_server, 60)
        assert worker.is_running()
        assert worker.memory_info().rss - before < LARGEST_GROWTH_BYTES
        # The tenant that sent all this is as welcome as before.
        assert client.post("/v1/completions", json=PROMPT | {"max_tokens": 1}).status_code == httpx.codes.OK
