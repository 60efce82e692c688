"""A `Refusal` as bytes: the error object of OpenAI's API, and the headers that tell an SDK whether to retry."""

from __future__ import annotations

import json
import math

from jubako.errors import MethodNotAllowed, Refusal, Unauthenticated

Headers = list[tuple[bytes, bytes]]


def body(refusal: Refusal) -> bytes:
    """The JSON error document."""
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return json.dumps({"error": error}, ensure_ascii=True).encode()


def event(refusal: Refusal) -> bytes:
    """The error as the last server-sent event of a stream; no `[DONE]` follows it."""
    return b"data: " + body(refusal) + b"\n\n"


def headers(refusal: Refusal) -> Headers:
    """Retry advice, and what HTTP asks of particular statuses."""
    found: Headers = [(b"x-should-retry", b"true" if refusal.retry else b"false")]
    if refusal.retry:
        seconds = refusal.retry_after_seconds
        found.append((b"retry-after", str(math.ceil(seconds)).encode()))
        found.append((b"retry-after-ms", str(math.ceil(seconds * 1000)).encode()))
    if isinstance(refusal, MethodNotAllowed):
        found.append((b"allow", refusal.allow.encode()))
    if isinstance(refusal, Unauthenticated):
        found.append((b"www-authenticate", b"Bearer"))
    return found
