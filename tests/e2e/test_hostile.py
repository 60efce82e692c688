"""Every hostile body against the real server, many at a time, beside a neighbour who notices nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.contract.corpus import BASE
from tests.engine_metrics import await_rest
from tests.hostile import HOSTILE, Hostile

if TYPE_CHECKING:
    from tests.project import Served
    from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

AT_A_TIME = 8
STALL_SECONDS = 90.0
"""No reply may take longer, grammars that are too costly included."""
LARGEST_GAP_SECONDS = 5.0
LARGEST_GROWTH_BYTES = 300 << 20
TURNS = 12
"""How often a busy server is asked again, when it says to come back."""
PROMPT = {"model": BASE, "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


class Neighbour(threading.Thread):
    """Streams one completion after the other until it is told to stop; the last one is read to its end."""

    def __init__(self, server: Served, key: str) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.url}/v1/completions"
        self._client = httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=STALL_SECONDS)
        self._stop = threading.Event()
        self.streaming = threading.Event()
        self.streams = 0
        self.faults: list[str] = []
        self.largest_gap = 0.0

    def run(self) -> None:
        """Stream until the stop."""
        with self._client:
            while not self._stop.is_set() and not self.faults:
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
        self._stop.set()
        self.join(2 * STALL_SECONDS)
        assert not self.is_alive(), "the neighbour's stream has no end"


def fault_of(client: httpx.Client, one: Hostile) -> str | None:
    """What is wrong with the reply to a hostile request, if anything is."""
    try:
        reply = _asked(client, one)
    except httpx.TransportError as broken:
        return f"{one.name}: no reply: {broken!r}"
    if reply.status_code not in one.statuses:
        return f"{one.name}: {reply.status_code}, not one of {sorted(one.statuses)}: {reply.text[:300]}"
    if reply.status_code == httpx.codes.OK:
        return None if reply.json()["choices"] else f"{one.name}: answered with nothing"
    error: dict[str, Any] = reply.json()["error"]
    known = error.keys() == {"message", "type", "param", "code"} and len(error["message"]) < 2000
    return None if known else f"{one.name}: not an error of ours: {reply.text[:300]}"


def _asked(client: httpx.Client, one: Hostile) -> httpx.Response:
    """The reply, once the server is not too busy for one: the corpus does not know how busy it is."""
    for _ in range(TURNS - 1):
        reply = client.post(one.path, content=one.body, headers=dict(one.headers))
        if reply.status_code != httpx.codes.TOO_MANY_REQUESTS:
            return reply
        time.sleep(min(float(reply.headers["retry-after-ms"]) / 1000, 10.0))
    return client.post(one.path, content=one.body, headers=dict(one.headers))


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
            with ThreadPoolExecutor(AT_A_TIME) as senders:
                faults = [fault for fault in senders.map(lambda one: fault_of(client, one), HOSTILE) if fault]
        finally:
            neighbour.stop()
        assert not faults, "\n".join(faults)
        assert not neighbour.faults
        assert neighbour.streams > 0
        assert neighbour.largest_gap < LARGEST_GAP_SECONDS
        assert httpx.get(f"{jubako_server.url}/readyz", timeout=10).status_code == httpx.codes.OK
        await_rest(jubako_server, 60)
        assert worker.is_running()
        assert worker.memory_info().rss - before < LARGEST_GROWTH_BYTES
        # The tenant that sent all this is as welcome as before.
        assert client.post("/v1/completions", json=PROMPT | {"max_tokens": 1}).status_code == httpx.codes.OK
