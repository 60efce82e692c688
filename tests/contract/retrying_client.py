"""The official client with its own retries, and what it asks: a chat, or bytes that are a test's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import openai

from tests.contract.wire import Wire


class Client(openai.OpenAI):  # type: ignore[misc]
    """The official client with its own retries. What it would wait is noted, and `meanwhile` is called instead."""

    waits: list[float]
    told: list[float]
    """What the replies said before each wait, in seconds; zero if nothing."""
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def _sleep_for_retry(self, *, retries_taken: int, max_retries: int, options: Any, response: Any) -> None:
        left = max_retries - retries_taken
        self.waits.append(self._calculate_retry_timeout(left, options, response.headers if response else None))
        self.told.append(float(response.headers.get("retry-after-ms", 0)) / 1000 if response else 0.0)
        self.meanwhile()


def client(wire: Wire, credential: str | None = None) -> Client:
    """The client with every default but its address, its key and its patience."""
    one = Client(base_url=wire.url, api_key=credential or wire.key(), timeout=120)
    one.waits, one.told = [], []
    return one


def chat(one: Any, **fields: Any) -> Any:
    """A harmless request, with `fields`."""
    asked: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    return one.chat.completions.create(**asked | fields)


def says(text: str) -> dict[str, str]:
    """One message of the user's."""
    return {"role": "user", "content": text}


def starved_body() -> Iterator[bytes]:
    """A body that begins and does not go on in time."""
    yield b'{"model"'
    time.sleep(3 * 0.3)
    yield b": 1}"


def post(one: Client, content: Any, media_type: str = "application/json") -> Any:
    """A chat request whose bytes are the test's."""
    options: Any = {"headers": {"content-type": media_type}}
    return one.post("/chat/completions", cast_to=object, content=content, options=options)
