"""A tenant's budgets: told in headers, kept to by one, and charged with what was generated."""

from __future__ import annotations

import httpx
import pytest

from tests.callers import ENDLESS
from tests.engine_metrics import await_rest
from tests.project import Served, until
from tests.tenant_requests import PROMPT, ask, error_of
from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_limit_a_minute_is_told_and_kept(jubako_server: Served, keys: Keys) -> None:
    """The headers count down, the refusal says when to come back."""
    key = keys.of("three-a-minute")
    remaining = []
    for _ in range(3):
        reply = ask(jubako_server, key)
        assert reply.status_code == httpx.codes.OK
        assert reply.headers["x-ratelimit-limit-requests"] == "3"
        remaining.append(reply.headers["x-ratelimit-remaining-requests"])
    assert remaining == ["2", "1", "0"]
    refused = ask(jubako_server, key)
    assert error_of(refused) == (429, "rate_limit_exceeded")
    assert refused.headers["x-should-retry"] == "true"
    assert 0 < int(refused.headers["retry-after-ms"]) <= 61_000  # a minute, and the second that a slot lasts
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_cancelled_stream_is_charged_what_was_generated(jubako_server: Served, keys: Keys) -> None:
    """Not nothing, and not all that it might have used."""
    key = keys.of("thrifty")

    def remaining(*, max_tokens: int = 1) -> int:
        return int(ask(jubako_server, key, max_tokens=max_tokens).headers["x-ratelimit-remaining-tokens"])

    before = remaining()
    with (
        httpx.Client(timeout=300) as client,
        client.stream(
            "POST",
            f"{jubako_server.url}/v1/completions",
            headers={"authorization": f"Bearer {key}"},
            json=PROMPT | {"max_tokens": ENDLESS, "stream": True},
        ) as reply,
    ):
        assert reply.status_code == httpx.codes.OK
        events = 0
        for line in reply.iter_lines():
            events += line.startswith("data:")
            if events == 10:
                break
    await_rest(jubako_server)
    used = before - remaining()
    assert 10 + 4 <= used < ENDLESS


@pytest.mark.parametrize(("tenant", "second"), [("one-at-a-time", 429), ("one-a-key", 200)])
def test_one_place_is_one_place(jubako_server: Served, keys: Keys, tenant: str, second: int) -> None:
    """Of the tenant, or of each of its keys; a place that was left is free at once."""
    first, other = keys.of(tenant), keys.another(tenant)
    with streaming(jubako_server, first):
        with jubako_server.engine_held():
            assert error_of(ask(jubako_server, first)) == (429, "concurrency_exceeded")
            if second == httpx.codes.TOO_MANY_REQUESTS:
                assert error_of(ask(jubako_server, other)) == (429, "concurrency_exceeded")
        if second == httpx.codes.OK:
            assert ask(jubako_server, other).status_code == httpx.codes.OK
    until(lambda: ask(jubako_server, first).status_code == httpx.codes.OK, "the place is free")


class streaming:  # noqa: N801 - reads as a statement
    """A stream of the key's under way for as long as the block runs."""

    def __init__(self, server: Served, key: str) -> None:
        self._client = httpx.Client(timeout=300)
        self._stream = self._client.stream(
            "POST",
            f"{server.url}/v1/completions",
            headers={"authorization": f"Bearer {key}"},
            json=PROMPT | {"max_tokens": ENDLESS, "stream": True},
        )

    def __enter__(self) -> None:
        reply = self._stream.__enter__()
        assert reply.status_code == httpx.codes.OK
        # Kept: an iterator that is dropped closes the connection.
        self._lines = reply.iter_lines()
        next(self._lines)

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__(None, None, None)
        self._client.close()


def test_a_spent_day_is_an_exhausted_quota(jubako_server: Served, keys: Keys) -> None:
    """Another code, and no advice to come back soon."""
    key = keys.of("spent")
    replies = [ask(jubako_server, key, max_tokens=16) for _ in range(4)]
    refused = replies[-1]
    assert replies[0].status_code == httpx.codes.OK
    assert error_of(refused) == (429, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
