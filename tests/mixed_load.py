"""Requests of many kinds, most of which do not end well: whole, streamed, left, late, refused. What each caller saw.

It knows the API and HTTP; it knows nothing of books, metrics or processes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.contract.corpus import ADAPTER, BASE, CHAT, COMPLETIONS, CONTEXT_TOKENS, says

ENDLESS = {"max_tokens": 1500, "ignore_eos": True}
"""More than most machines make before the request is ended; one that comes to its end is counted like any other."""
USAGE = {"stream_options": {"include_usage": True}}
SHARED = "The quick brown fox jumps over the lazy dog. " * 20
"""Longer than a block of the cache, so that the second who says it finds it there."""
PATIENCE_SECONDS = 180.0
DEADLINE = "x-request-timeout-ms"


@dataclass
class Sent:
    """One request, and what its caller saw. `end` is whole, done, error, left or broken; empty while under way."""

    request_id: str
    kind: str
    tenant: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    choices: int = 1
    leaves_after_seconds: float | None = None
    status: int = 0
    end: str = ""
    usage: Mapping[str, int] | None = None
    text: str = ""

    @property
    def ended(self) -> bool:
        """Whether the caller has the end of a reply, whichever it is."""
        return self.end in {"whole", "done", "error"}


def _whole(chance: random.Random) -> dict[str, Any]:
    return {"path": CHAT, "body": {"messages": says(f"{SHARED} {chance.randrange(3)}"), "max_tokens": 5}}


def _streamed(chance: random.Random) -> dict[str, Any]:
    body = {"messages": says(f"Count to {chance.randrange(99)}."), "max_tokens": 12, "stream": True}
    return {"path": CHAT, "body": body | USAGE}


def _choices(_: random.Random) -> dict[str, Any]:
    body = {"prompt": "Once upon a time", "n": 3, "temperature": 1.0, "max_tokens": 6, "ignore_eos": True}
    return {"path": COMPLETIONS, "body": body, "choices": 3}


def _prompts(_: random.Random) -> dict[str, Any]:
    body = {"prompt": ["In the beginning", "At the end of the day", SHARED], "n": 2, "temperature": 1.0}
    return {"path": COMPLETIONS, "body": body | {"max_tokens": 4, "stream": True} | USAGE, "choices": 2}


def _adapted(_: random.Random) -> dict[str, Any]:
    return {
        "path": CHAT,
        "body": {"model": ADAPTER, "messages": says("Hello"), "max_tokens": 6, "stream": True} | USAGE,
    }


def _stopped(_: random.Random) -> dict[str, Any]:
    body = {"messages": says("What is the capital of France?"), "stop": [" France"], "max_tokens": 16}
    return {"path": CHAT, "body": body}


def _formed(_: random.Random) -> dict[str, Any]:
    return {"path": CHAT, "body": {"messages": says("Rome?"), "structured_outputs": {"choice": ["Paris", "Rome"]}}}


def _leaves(chance: random.Random) -> dict[str, Any]:
    text = chance.choice([SHARED, "Tell me a story.", SHARED * 6 + str(chance.random())])
    body = {"messages": says(text), "stream": chance.random() < 0.6, **ENDLESS}
    return {"path": CHAT, "body": body, "leaves_after_seconds": chance.choice([0.0, 0.02, 0.1, 0.5, 2.0])}


def _late(chance: random.Random) -> dict[str, Any]:
    body = {"messages": says(f"Tell me a story. {SHARED}"), "stream": chance.random() < 0.5, **ENDLESS}
    return {"path": CHAT, "body": body, "headers": {DEADLINE: str(chance.choice([1, 50, 400, 2500]))}}


def _unknown_field(_: random.Random) -> dict[str, Any]:
    return {"path": CHAT, "body": {"messages": says("hi"), "nonsense": 1}}


def _unknown_model(_: random.Random) -> dict[str, Any]:
    return {"path": CHAT, "body": {"messages": says("hi"), "model": "gpt-4"}}


def _too_long(_: random.Random) -> dict[str, Any]:
    return {"path": CHAT, "body": {"messages": says("word " * (CONTEXT_TOKENS + 100)), "max_tokens": 5}}


def _stranger(_: random.Random) -> dict[str, Any]:
    return {"path": CHAT, "body": {"messages": says("hi")}, "headers": {"authorization": "Bearer nobody"}}


def _nowhere(_: random.Random) -> dict[str, Any]:
    return {"path": "/v1/nothing", "body": {}}


KINDS: Mapping[str, tuple[int, Callable[[random.Random], dict[str, Any]]]] = {
    "whole": (12, _whole),
    "streamed": (12, _streamed),
    "choices": (6, _choices),
    "prompts": (6, _prompts),
    "adapted": (6, _adapted),
    "stopped": (4, _stopped),
    "formed": (4, _formed),
    "leaves": (24, _leaves),
    "late": (12, _late),
    "unknown field": (3, _unknown_field),
    "unknown model": (3, _unknown_model),
    "too long": (2, _too_long),
    "stranger": (3, _stranger),
    "nowhere": (3, _nowhere),
}
"""Kind -> its share, and what makes one."""


def make(chance: random.Random, tenants: Sequence[str], count: int, name: str) -> list[Sent]:
    """Requests of all kinds, in the order that chance gives them."""
    return list(itertools.islice(endless(chance, tenants, name, list(KINDS)), count))


def endless(chance: random.Random, tenants: Sequence[str], name: str, kinds: Sequence[str]) -> Iterator[Sent]:
    """The same without end, of some kinds."""
    weights = [KINDS[kind][0] for kind in kinds]
    for number in itertools.count():
        (kind,) = chance.choices(kinds, weights)
        yield Sent(f"{name}-{number}", kind, chance.choice(tenants), **KINDS[kind][1](chance))


async def ask_all(
    url: str, keys: Mapping[str, str], requests: Sequence[Sent], *, at_once: int, arrived: Callable[[int], None]
) -> None:
    """Send them, `at_once` at a time; `arrived` is told how many have ended. Whatever happens is in the records."""
    places = asyncio.Semaphore(at_once)
    done = 0
    async with _client(url) as client:

        async def one(sent: Sent) -> None:
            nonlocal done
            async with places:
                await ask(client, keys[sent.tenant], sent)
            done += 1
            arrived(done)

        await asyncio.gather(*(one(sent) for sent in requests))


async def ask_until_broken(url: str, keys: Mapping[str, str], requests: Iterator[Sent], *, at_once: int) -> list[Sent]:
    """Send one after the other, `at_once` callers, each until its connection breaks; what was sent."""
    sent: list[Sent] = []
    async with _client(url) as client:

        async def caller() -> None:
            for one in requests:
                sent.append(one)
                await ask(client, keys[one.tenant], one)
                if one.end == "broken":
                    return
                if one.status == httpx.codes.SERVICE_UNAVAILABLE:
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(caller() for _ in range(at_once)))
    return sent


def _client(url: str) -> httpx.AsyncClient:
    """Without a trust store: loading one takes long beside a busy engine."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.AsyncClient(base_url=url, verify=context, timeout=PATIENCE_SECONDS, limits=limits)


async def ask(client: httpx.AsyncClient, key: str, sent: Sent) -> None:
    """Send one, and read its reply until it ends or its caller leaves."""
    try:
        async with asyncio.timeout(sent.leaves_after_seconds):
            await _read(client, key, sent)
    except TimeoutError:
        sent.end = "left"
    except httpx.TransportError:
        sent.end = "broken"


async def _read(client: httpx.AsyncClient, key: str, sent: Sent) -> None:
    headers = {"authorization": f"Bearer {key}", "x-request-id": sent.request_id} | sent.headers
    body = {"model": BASE, "temperature": 0} | sent.body if sent.body else {}
    async with client.stream("POST", sent.path, json=body, headers=headers) as reply:
        sent.status = reply.status_code
        streamed = reply.headers["content-type"].startswith("text/event-stream")
        async for part in reply.aiter_text():
            sent.text += part
    if streamed:
        _see_events(sent)
    else:
        sent.end = "whole"
        sent.usage = json.loads(sent.text).get("usage")


def _see_events(sent: Sent) -> None:
    events = [line.removeprefix("data: ") for line in sent.text.splitlines() if line.startswith("data: ")]
    last = events[-1] if events else ""
    sent.end = "done" if last == "[DONE]" else "error" if last.startswith('{"error"') else "broken"
    for event in events:
        if event.startswith("{"):
            sent.usage = json.loads(event).get("usage") or sent.usage
