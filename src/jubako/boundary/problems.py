"""A `Refusal` as bytes: the error object of OpenAI's API, and the headers that tell an SDK whether to retry."""

from __future__ import annotations

import json
import math

from jubako.errors import MethodNotAllowed, Refusal, Unauthenticated
from jubako.vocabulary import Rates

Headers = list[tuple[bytes, bytes]]


def body(refusal: Refusal) -> bytes:
    """The JSON error document."""
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return json.dumps({"error": error}, ensure_ascii=True).encode()


def event(refusal: Refusal) -> bytes:
    """The error as the last server-sent event of a stream; no `[DONE]` follows it."""
    return b"data: " + body(refusal) + b"\n\n"


def headers(refusal: Refusal, *, retried: bool = False) -> Headers:
    """Retry advice, and what HTTP asks of particular statuses. `retried`: this request was itself a retry."""
    retry = refusal.retry and not (refusal.retry_once and retried)
    found: Headers = [(b"x-should-retry", b"true" if retry else b"false")]
    if retry:
        seconds = refusal.retry_after_seconds
        found.append((b"retry-after", str(math.ceil(seconds)).encode()))
        found.append((b"retry-after-ms", str(math.ceil(seconds * 1000)).encode()))
    if refusal.rates is not None:
        found.extend(rate_headers(refusal.rates))
    if isinstance(refusal, MethodNotAllowed):
        found.append((b"allow", refusal.allow.encode()))
    if isinstance(refusal, Unauthenticated):
        found.append((b"www-authenticate", b"Bearer"))
    return found


_RATE_HEADERS = {
    kind: tuple(f"x-ratelimit-{name}-{kind}".encode() for name in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}


def rate_headers(rates: Rates) -> Headers:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, for those limits that there are."""
    found: Headers = []
    for kind, rate in (("requests", rates.requests), ("tokens", rates.tokens)):
        if rate is None:
            continue
        limit, remaining, reset = _RATE_HEADERS[kind]
        found.append((limit, b"%d" % rate.limit))
        found.append((remaining, b"%d" % max(rate.remaining, 0)))
        found.append((reset, duration(rate.reset_seconds).encode()))
    return found


def duration(seconds: float) -> str:
    """A span of time as OpenAI writes it: `120ms`, `1s`, `6m0s`, `1h0m0s`; rounded up, as too early is no use."""
    milliseconds = math.ceil(max(seconds, 0.0) * 1000)
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{rest}s"
