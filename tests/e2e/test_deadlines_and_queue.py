"""A deadline ends what is under way; the queue refuses who cannot wait and forgets who leaves."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from tests.callers import ENDLESS, Caller
from tests.engine_metrics import await_rest
from tests.project import Served, until
from tests.tenant_requests import PROMPT, ask, error_of
from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_deadline_ends_a_whole_reply_with_504(jubako_server: Served, keys: Keys) -> None:
    """By policy, or sooner by the caller; the engine stops, too."""
    late = ask(jubako_server, keys.of("hasty"), max_tokens=ENDLESS)
    assert error_of(late) == (504, "deadline_exceeded")
    sooner = ask(jubako_server, keys.of("red"), max_tokens=ENDLESS, headers={"x-request-timeout-ms": "700"})
    assert error_of(sooner) == (504, "deadline_exceeded")
    assert sooner.headers["x-should-retry"] == "true"
    await_rest(jubako_server)


def test_a_deadline_ends_a_stream_with_an_error_event(jubako_server: Served, keys: Keys) -> None:
    """And no `[DONE]` after it."""
    longer = {"x-request-timeout-ms": "3600000"}
    reply = ask(jubako_server, keys.of("hasty"), max_tokens=ENDLESS, stream=True, headers=longer)
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data:")]
    assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded"
    assert len(events) > 5
    await_rest(jubako_server)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "1e3", "", "9" * 40])
def test_a_deadline_that_is_none_is_refused(jubako_server: Served, value: str) -> None:
    """Rather than ignored."""
    assert ask(jubako_server, jubako_server.key, headers={"x-request-timeout-ms": value}).status_code == 400


# -- the queue


def test_who_cannot_wait_is_refused_at_once(jubako_server: Served, keys: Keys) -> None:
    """More at once than the engine takes: some are served in time, the others are told when to come back."""
    key = keys.of("impatient")
    replies: list[httpx.Response] = []

    def one() -> None:
        replies.append(ask(jubako_server, key, max_tokens=100))

    crowd = [threading.Thread(target=one) for _ in range(40)]
    for caller in crowd:
        caller.start()
    for caller in crowd:
        caller.join(180)
    served = [reply for reply in replies if reply.status_code == httpx.codes.OK]
    refused = [reply for reply in replies if reply.status_code != httpx.codes.OK]
    assert served
    assert refused
    assert len(replies) == len(crowd)
    assert {error_of(reply) for reply in refused} == {(429, "wait_too_long")}
    assert all(int(reply.headers["retry-after-ms"]) > 0 for reply in refused)


def test_a_queued_caller_who_leaves_costs_nothing(jubako_server: Served, keys: Keys) -> None:
    """Its place goes to the next, and the engine never hears of it."""
    crowd = [Caller(jubako_server, 60) for _ in range(24)]
    for caller in crowd:
        caller.start()
    until(lambda: sum(bool(caller.events) for caller in crowd) >= 4, "the engine is busy")

    def leave() -> None:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{jubako_server.url}/v1/completions",
                headers={"authorization": f"Bearer {keys.of('red')}"},
                json=PROMPT | {"max_tokens": 800},
                timeout=0.2,
            )

    keys.of("red")
    leavers = [threading.Thread(target=leave) for _ in range(8)]
    for one in leavers:
        one.start()
    for one in leavers:
        one.join(30)
    for caller in crowd:
        caller.join(120)
    assert {caller.end for caller in crowd} == {"[DONE]"}
    await_rest(jubako_server)
