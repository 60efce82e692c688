"""Sends hostile requests over the wire, many at a time, and says which replies are not as they should be.

It knows the error object and the corpus's promises; it knows nothing of the server behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.hostile import Hostile

AT_A_TIME = 8
STALL_SECONDS = 90.0
"""No reply may take longer, grammars that are too costly included."""
TURNS = 12
"""How often a busy server is asked again, when it says to come back."""


def faults_of(client: httpx.Client, corpus: Iterable[Hostile]) -> list[str]:
    """What is wrong with the replies, one sentence each."""
    with ThreadPoolExecutor(AT_A_TIME) as senders:
        return [fault for fault in senders.map(lambda one: fault_of(client, one), corpus) if fault]


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
