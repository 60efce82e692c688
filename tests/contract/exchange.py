"""Sends one request to one server and reads the whole reply.

It knows HTTP and server-sent events; it knows nothing of what a reply should say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import httpx

from tests.contract.corpus import Request

DONE = "[DONE]"
TIMEOUT_SECONDS = 180.0
SHOWN_HEADERS = ("content-type", "allow")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said: `document` of a whole reply, `events` of a stream; `stray` are SSE lines not to be sent."""

    status: int
    headers: dict[str, str]
    document: Any = None
    events: list[Any] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The reply as JSON, to be read by people."""
        return asdict(self)


class Exchange:
    """A client of one server."""

    def __init__(self, base_url: str, key: str = "") -> None:
        self._client = httpx.Client(base_url=base_url, timeout=TIMEOUT_SECONDS)
        self._key = key

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, request: Request) -> Reply:
        """Send `request` and return all that came back."""
        headers = {"content-type": "application/json"} if request.body is not None else {}
        headers |= dict(request.headers)
        if request.authorized:
            headers["authorization"] = f"Bearer {self._key or 'none'}"
        reply = self._client.request(request.method, request.path, content=request.content(), headers=headers)
        shown = {name: reply.headers[name] for name in SHOWN_HEADERS if name in reply.headers}
        if shown.get("content-type", "").startswith("text/event-stream"):
            events, stray = parse_events(reply.text)
            return Reply(reply.status_code, shown, events=events, stray=stray)
        return Reply(reply.status_code, shown, document=_parsed(reply.text))

    def send_all(self, requests: Iterable[Request]) -> dict[str, Reply]:
        """Send `requests` one after another: alone in the engine, each is computed alike each time."""
        return {request.name: self.send(request) for request in requests}


def parse_events(text: str) -> tuple[list[Any], list[str]]:
    """Split a stream into its events and the lines that are neither `data:` nor comments."""
    events: list[Any] = []
    stray: list[str] = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        stray += [line for line in lines if not line.startswith("data:")]
        data = [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]
        if data:
            events.append(_parsed("\n".join(data)))
    return events, stray


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
