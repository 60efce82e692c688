"""Callers whose stream is under way, and what each of them saw in the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.contract.corpus import ENDLESS_TOKENS
from tests.project import DEMO, Served, until

PATIENCE_SECONDS = 400.0
ANSWER_SECONDS = 120.0
MANY = 600
"""Tokens of a stream that a test means to finish."""
ENDLESS = ENDLESS_TOKENS
"""Tokens of a stream that a test means to cut."""
ATTEMPTS = 5


class Caller(threading.Thread):
    """One streamed completion, read to its end in a thread."""

    def __init__(self, served: Served, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._served = served
        self._max_tokens = max_tokens
        # Made before any caller starts, and without a trust store: loading one takes long beside a busy engine.
        self._client = httpx.Client(verify=False, timeout=PATIENCE_SECONDS)
        self.status = 0
        self.events: list[str] = []
        self.broken: Exception | None = None

    def run(self) -> None:
        """Send the request and read events until the stream ends."""
        body = {"model": DEMO, "prompt": "Once upon a time", "max_tokens": self._max_tokens, "stream": True}
        try:
            with self._client.stream(
                "POST",
                f"{self._served.url}/v1/completions",
                headers={"authorization": f"Bearer {self._served.key}"},
                json=body | {"ignore_eos": True, "temperature": 0},
            ) as reply:
                self.status = reply.status_code
                self.events.extend(line.removeprefix("data: ") for line in reply.iter_lines() if line[:5] == "data:")
        except httpx.TransportError as error:
            self.broken = error
        finally:
            self._client.close()

    @property
    def completed(self) -> bool:
        """Whether the stream ended as a stream must."""
        return bool(self.events) and self.events[-1] == "[DONE]"

    @property
    def end(self) -> str:
        """How the stream ended: `[DONE]`, the code of an error event, what broke it, or that nothing did."""
        if self.broken is not None:
            return f"after {len(self.events)} events: {self.broken!r}"
        if not self.events or self.completed:
            return self.events[-1] if self.events else f"no events, status {self.status}"
        error: dict[str, Any] = json.loads(self.events[-1]).get("error", {})
        return str(error.get("code", f"after {len(self.events)} events: no last one"))


def _started(served: Served, callers: int, max_tokens: int) -> list[Caller]:
    """Callers that all have had a few tokens, or more if the test itself was held up."""
    started = [Caller(served, max_tokens) for _ in range(callers)]
    for caller in started:
        caller.start()
    until(lambda: all(len(caller.events) > 5 for caller in started), "every stream is under way")
    return started


def _join(callers: list[Caller]) -> None:
    for caller in callers:
        caller.join(PATIENCE_SECONDS)
        assert not caller.is_alive(), "a caller was left without an end"


@contextmanager
def streaming(served: Served, callers: int = 3) -> Iterator[list[Caller]]:
    """Callers in the middle of a stream that must be cut; at the end each has been waited for."""
    started = _started(served, callers, ENDLESS)
    yield started
    _join(started)


@contextmanager
def finishing(served: Served, callers: int = 3) -> Iterator[list[Caller]]:
    """Callers in the middle of a stream, where the engine stands still until the block ends; then they finish.

    If they finished before it could be held, because the test itself was held up, others are started.
    """
    for _ in range(ATTEMPTS):
        started = _started(served, callers, MANY)
        with served.engine_held():
            models(served)  # what the engine had sent before is dealt with
            if all(len(caller.events) < MANY // 2 for caller in started):
                yield started
                break
        _join(started)
    else:
        raise AssertionError(f"{ATTEMPTS} times, the streams were over before all were under way")
    _join(started)


def models(served: Served, timeout_seconds: float = ANSWER_SECONDS) -> httpx.Response:
    """What `GET /v1/models` says now."""
    return httpx.get(
        f"{served.url}/v1/models", headers={"authorization": f"Bearer {served.key}"}, timeout=timeout_seconds
    )
