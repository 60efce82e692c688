"""Accounts of requests as the books are told of them: what the tests of metrics, traces and logs share."""

from __future__ import annotations

from typing import Any

from jubako.vocabulary import Account, Outcome, Usage


def account(**changes: Any) -> Account:
    """A completed chat of 20 prompt and 11 generated tokens that took 3 seconds, with `changes`."""
    fields: dict[str, Any] = {
        "ended_at": 1_800_000_003.0,
        "request_id": "request-1",
        "tenant": "acme",
        "key_id": "key-1",
        "route": "chat_completions",
        "alias": "smollm2",
        "adapter": False,
        "release": "ab" * 32,
        "stream": True,
        "status": 200,
        "outcome": Outcome.COMPLETED,
        "code": "",
        "priority": 2,
        "usage": Usage(prompt_tokens=20, cached_tokens=16, generated_tokens=11, decode_tokens=10, decode_seconds=2.0),
        "queue_seconds": 0.5,
        "first_token_seconds": 1.0,
        "total_seconds": 3.0,
    }
    return Account(**(fields | changes))


def refused(code: str, **changes: Any) -> Account:
    """A request that was refused before it had anything."""
    fields = {
        "outcome": Outcome.REFUSED,
        "code": code,
        "status": 429,
        "usage": Usage(),
        "queue_seconds": 0.0,
        "first_token_seconds": 0.0,
        "total_seconds": 0.01,
    }
    return account(**(fields | changes))
