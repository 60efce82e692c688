"""What an operator decides of a tenant holds at once, on every route, for streams under way included."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from tests.callers import ENDLESS, Caller
from tests.contract.corpus import ADAPTER, BASE
from tests.engine_metrics import await_rest
from tests.project import Project, Served, until
from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TEN_TIMES_SEEN_SECONDS = 20.0
"""For what takes two seconds at most."""
PROMPT = {"model": BASE, "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


def ask(server: Served, key: str, **fields: Any) -> httpx.Response:
    """One completion."""
    headers = {"authorization": f"Bearer {key}", **fields.pop("headers", {})}
    return httpx.post(
        f"{server.url}/v1/completions", headers=headers, json=PROMPT | {"max_tokens": 4} | fields, timeout=300
    )


def error_of(reply: httpx.Response) -> tuple[int, str]:
    """Status and code."""
    return reply.status_code, reply.json()["error"]["code"]


def names(server: Served, key: str) -> list[str]:
    """What `/v1/models` lists."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
        return [model.id for model in client.models.list()]


def test_a_name_that_is_not_approved_does_not_exist(jubako_server: Served, keys: Keys) -> None:
    """Not in the list, not by itself, not to be asked; existence is not told."""
    assert names(jubako_server, keys.of("base-only")) == [BASE]
    assert names(jubako_server, keys.of("adapter-only")) == [ADAPTER]
    stranger = ask(jubako_server, keys.of("base-only"), model="no-such-model")
    refused = ask(jubako_server, keys.of("base-only"), model=ADAPTER)
    assert error_of(refused) == (404, "model_not_found")
    assert refused.json() == stranger.json()
    assert error_of(ask(jubako_server, keys.of("adapter-only"), model=BASE)) == (404, "model_not_found")
    # Who names no model asks for the first one.
    assert error_of(ask(jubako_server, keys.of("adapter-only"), model=None)) == (404, "model_not_found")
    assert ask(jubako_server, keys.of("adapter-only"), model=ADAPTER).status_code == httpx.codes.OK


def test_a_scope_opens_its_routes_alone(jubako_server: Served, keys: Keys) -> None:
    """Of the policy, and of the key within it."""
    assert error_of(ask(jubako_server, keys.of("chat-only"))) == (403, "scope_missing")
    listing = keys.another("default", "--scope", "models")
    assert BASE in names(jubako_server, listing)
    assert error_of(ask(jubako_server, listing)) == (403, "scope_missing")


def test_metrics_and_documents_are_the_operators(jubako_server: Served, keys: Keys) -> None:
    """A tenant's key does not read them; the operator's reads nothing else."""
    for path, key, status in (
        ("/metrics", None, 401),
        ("/metrics", keys.of("red"), 403),
        ("/metrics", jubako_server.operator_key, 200),
        ("/schema.json", jubako_server.operator_key, 404),
        ("/docs.json", jubako_server.operator_key, 404),
        ("/", jubako_server.operator_key, 404),
    ):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        assert httpx.get(f"{jubako_server.url}{path}", headers=headers).status_code == status, path
    assert error_of(ask(jubako_server, jubako_server.operator_key)) == (403, "scope_missing")
    for path in ("/livez", "/readyz", "/healthz"):
        assert httpx.get(f"{jubako_server.url}{path}").status_code == httpx.codes.OK


def test_a_suspended_tenant_is_told_so(jubako_server: Served, keys: Keys) -> None:
    """With a status of its own."""
    assert error_of(ask(jubako_server, keys.of("suspended"))) == (403, "tenant_suspended")


def test_a_revoked_key_fails_soon_and_drops_nothing(
    jubako_server: Served, keys: Keys, adapted_project: Project
) -> None:
    """A stream that it began goes on; others notice nothing."""
    key = keys.another("revocable")
    identity = key.split("_")[1]
    neighbour = Caller(jubako_server, 150)
    neighbour.start()
    assert ask(jubako_server, key).status_code == httpx.codes.OK
    revoked = adapted_project.jubako("keys", "revoke", identity)
    assert revoked.returncode == 0, revoked.stderr
    until(
        lambda: error_of_or_none(ask(jubako_server, key)) == (401, "invalid_api_key"),
        "the key is refused",
        TEN_TIMES_SEEN_SECONDS,
    )
    neighbour.join(120)
    assert neighbour.completed


def error_of_or_none(reply: httpx.Response) -> tuple[int, str] | None:
    """Status and code, if it is an error."""
    return None if reply.status_code == httpx.codes.OK else error_of(reply)


def test_a_broken_edit_keeps_the_last_good_state_and_says_so(
    jubako_server: Served, keys: Keys, adapted_project: Project
) -> None:
    """Tenants go on being served while the file is wrong, and a good one is taken again."""
    path = adapted_project.folder / "configuration" / "tenants.yaml"
    good = path.read_text()
    try:
        path.write_text(good.replace('"policy": "red"', '"policy": "rde"'))
        until(lambda: "tenants.yaml" in jubako_server.log and "rde" in jubako_server.log, "the log names the fault")
        assert ask(jubako_server, keys.of("red")).status_code == httpx.codes.OK
        document = yaml.safe_load(good)
        document["tenants"]["red"]["suspended"] = True
        path.write_text(json.dumps(document, indent=1))
        until(lambda: error_of_or_none(ask(jubako_server, keys.of("red"))) == (403, "tenant_suspended"), "suspended")
    finally:
        path.write_text(good)
    until(lambda: ask(jubako_server, keys.of("red")).status_code == httpx.codes.OK, "back")


def test_a_policys_limits_are_lower_than_the_servers(jubako_server: Served, keys: Keys) -> None:
    """Output tokens, prompt tokens after rendering, messages; and the default for those who ask for none."""
    key = keys.of("small")
    assert ask(jubako_server, key, max_tokens=8).status_code == httpx.codes.OK
    assert ask(jubako_server, key, max_tokens=9).json()["error"]["param"] == "max_tokens"
    assert error_of(ask(jubako_server, key, prompt="word " * 60)) == (400, "context_length_exceeded")
    assert error_of(ask(jubako_server, key, prompt=[list(range(60))])) == (400, "context_length_exceeded")
    with openai.OpenAI(base_url=f"{jubako_server.url}/v1", api_key=key) as client:
        talk: Any = [{"role": "user", "content": "Count to one hundred."}]
        reply = client.chat.completions.create(model=BASE, messages=talk)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 4
        assert reply.choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match="messages"):
            client.chat.completions.create(model=BASE, messages=talk * 4)


# -- budgets


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


# -- deadlines


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


def test_no_file_of_the_gate_is_readable_by_others(adapted_project: Project, jubako_server: Served) -> None:
    """Digests and counts are nobody else's business."""
    kept = adapted_project.folder / ".jubako"
    for name in ("keys.json", "dev.key", "operator.key", "budgets.sqlite"):
        assert (Path(kept / name).stat().st_mode & 0o077) == 0, name
