"""One exchange at the edge: which headers are taken, and which every reply has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jubako.boundary import problems
from jubako.boundary.application import Application
from jubako.boundary.exchange import MAXIMUM_HEADER_BYTES, MAXIMUM_HEADERS, Exchange
from jubako.errors import Busy, InvalidRequest, NotFound, QuotaExhausted, Refusal
from jubako.vocabulary import Document, Rate, Rates

Pairs = list[tuple[bytes, bytes]]
KEY = (b"authorization", b"Bearer a-key-for-tests-only")


async def reply(handler: Callable[[Exchange], Awaitable[None]], headers: Pairs) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body that `handler` gives."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    await Application(handler)(scope, receive, send)
    names = [name for name, _ in sent[0]["headers"]]
    assert len(names) == len(set(names)), "a header was sent twice"
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:])


async def checked(exchange: Exchange) -> None:
    """Answer what is sound."""
    try:
        exchange.require_sound_headers()
    except Refusal as refusal:
        await exchange.refuse(refusal)
    else:
        await exchange.document(Document(b"{}"))


@pytest.mark.parametrize("name", [b"authorization", b"content-type", b"content-encoding", b"x-request-id"])
async def test_a_header_that_decides_may_be_sent_once(name: bytes) -> None:
    """Of two, a proxy may have checked the other."""
    assert (await reply(checked, [(name, b"identity")]))[0] == 200
    status, _, body = await reply(checked, [(name, b"identity"), (name, b"identity")])
    assert status == 400
    assert b"invalid_header" in body


async def test_headers_are_counted() -> None:
    """At the limit, and one above."""
    many = [(b"x-%d" % number, b"") for number in range(MAXIMUM_HEADERS)]
    assert (await reply(checked, many))[0] == 200
    assert (await reply(checked, [*many, (b"x", b"")]))[0] == 400


async def test_bytes_of_headers_are_counted() -> None:
    """Names and values together."""
    assert (await reply(checked, [(b"x", b"y" * (MAXIMUM_HEADER_BYTES - 1))]))[0] == 200
    assert (await reply(checked, [(b"x", b"y" * MAXIMUM_HEADER_BYTES)]))[0] == 400


@pytest.mark.parametrize(
    ("coding", "status"), [("identity", 200), ("Identity ", 200), ("", 200), ("gzip", 415), ("br, gzip", 415)]
)
async def test_a_compressed_body_is_not_taken(coding: str, status: int) -> None:
    """Its size would not be the one that was counted."""
    assert (await reply(checked, [(b"content-encoding", coding.encode())]))[0] == status


async def test_no_reply_is_stored_or_guessed_at() -> None:
    """Whole replies and refusals alike."""
    for headers in ([KEY], [KEY, KEY]):
        _, found, _ = await reply(checked, headers)
        assert (found["x-content-type-options"], found["cache-control"]) == ("nosniff", "no-store")


async def test_a_stream_is_neither_stored_nor_held_back() -> None:
    """What proxies look at."""

    async def streams(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.close_stream()

    _, found, _ = await reply(streams, [KEY])
    assert (found["cache-control"], found["x-accel-buffering"]) == ("no-cache", "no")
    assert found["x-content-type-options"] == "nosniff"


RATES = Rates(requests=Rate(60, 59, 1.0), tokens=Rate(1000, 0, 360.0))


@pytest.mark.parametrize("refused", [False, True])
async def test_added_headers_go_with_whatever_follows(*, refused: bool) -> None:
    """The rates of an answered request, and of one that is refused later."""

    async def handler(exchange: Exchange) -> None:
        exchange.add_headers(lambda: problems.rate_headers(RATES))
        if refused:
            await exchange.refuse(NotFound("No."))
        else:
            await exchange.document(Document(b"{}"))

    _, found, _ = await reply(handler, [KEY])
    assert {name: value for name, value in found.items() if name.startswith("x-ratelimit")} == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6m0s",
    }


async def test_the_rates_of_a_refusal_are_the_later_ones() -> None:
    """They replace those that were added before."""

    async def handler(exchange: Exchange) -> None:
        exchange.add_headers(lambda: problems.rate_headers(RATES))
        refusal = Busy("Later.", retry_after_seconds=0.1234)
        refusal.rates = Rates(tokens=Rate(1000, -5, 0.12))
        await exchange.refuse(refusal)

    status, found, _ = await reply(handler, [KEY])
    assert status == 429
    assert (found["x-ratelimit-remaining-tokens"], found["x-ratelimit-reset-tokens"]) == ("0", "120ms")
    assert (found["retry-after"], found["retry-after-ms"]) == ("1", "124")
    assert found["x-should-retry"] == "true"


def test_an_exhausted_quota_is_not_worth_a_retry() -> None:
    """Coming back soon does not help."""
    assert dict(problems.headers(QuotaExhausted("No."))) == {b"x-should-retry": b"false"}
    assert dict(problems.headers(InvalidRequest("No."))) == {b"x-should-retry": b"false"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (-1, "0ms"),
        (0.0001, "1ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (1.2, "2s"),
        (59.1, "1m0s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (86399.5, "24h0m0s"),
    ],
)
def test_spans_of_time_are_written_as_openai_does(seconds: float, text: str) -> None:
    """Rounded up."""
    assert problems.duration(seconds) == text
