"""Every row of the error table, over the wire, raised and retried by the official client as promised.

What the engine itself says is scripted; keys, tokens, budgets and the queue are real.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import openai
import pytest

from jubako.errors import DeadlineExceeded, InvalidRequest
from jubako.life import Life, engine_lost, shutting_down
from jubako.sections import AdmissionSettings
from tests.contract.error_table import ATTEMPTS, FAULT, TABLE, TIMEOUT, UNAVAILABLE, YES
from tests.contract.retrying_client import Client, chat, client, post, says, starved_body
from tests.contract.wire import SERVER, Narrow, Wire, serving
from tests.scripted_engine import ScriptedEngine, event, hangs, raises, streams

ASKED_WRONGLY: dict[str, Callable[[Client], Any]] = {
    "invalid_header": lambda one: chat(one, extra_headers={f"x-{number}": "1" for number in range(101)}),
    "invalid_json": lambda one: post(one, b"{"),
    "invalid_value": lambda one: chat(one, temperature="hot"),
    "unknown_field": lambda one: chat(one, extra_body={"colour": "red"}),
    "unsupported_value": lambda one: chat(one, n=9),
    "context_length_exceeded": lambda one: chat(one, messages=[{"role": "user", "content": "x" * 1001}]),
    "missing_api_key": lambda one: chat(one, extra_headers={"Authorization": openai.Omit()}),
    "model_not_found": lambda one: chat(one, model="gpt-4"),
    "unknown_url": lambda one: one.embeddings.create(model="scripted", input="x"),
    "method_not_allowed": lambda one: one.models.delete("scripted"),
    "body_timeout": lambda one: post(one, starved_body()),
    "request_too_large": lambda one: chat(one, messages=[{"role": "user", "content": "x" * 5000}]),
    "unsupported_media_type": lambda one: post(one, b"{}", "text/plain"),
}
ASKED_IN_VAIN: dict[str, Callable[[Wire], AbstractContextManager[Any]]] = {
    "missing_field": lambda wire: scripted(wire, raises(InvalidRequest("Field required", code="missing_field"))),
    "internal_error": lambda wire: scripted(wire, raises(ValueError("a secret of the server's"))),
    "engine_unavailable": lambda wire: scripted(wire, raises(engine_lost())),
    "not_ready": lambda wire: lived(wire, Life()),
    "draining": lambda wire: lived(wire, drained()),
}
STRANGERS: dict[str, Callable[[Wire], str]] = {
    "invalid_api_key": lambda wire: wire.key()[:-1] + "?",
    "expired_token": lambda wire: wire.pair.token(exp=int(time.time()) - 60),
    "scope_missing": lambda wire: wire.key("lister"),
    "tenant_suspended": lambda wire: wire.key("suspended"),
}
CROWDED = {
    "rate_limit_exceeded",
    "concurrency_exceeded",
    "queue_full",
    "wait_too_long",
    "insufficient_quota",
    "deadline_exceeded",
}


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A server with room for all."""
    with serving(Wire(tmp_path_factory.mktemp("wire"), ScriptedEngine(), SERVER.admission)) as one:
        yield one


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A server that runs one request and lets one wait."""
    admission = AdmissionSettings.model_validate(SERVER.admission.model_dump() | {"queue_requests": 1})
    with serving(Wire(tmp_path_factory.mktemp("narrow"), Narrow(), admission)) as one:
        yield one


@pytest.fixture(autouse=True)
def as_it_was(wire: Wire, narrow: Wire) -> Iterator[None]:
    """Each test begins with engines that answer and with nothing counted."""
    for one in (wire, narrow):
        one.engine.script = ScriptedEngine().script
        one.engine.calls.clear()
        one.attempts.clear()
    phases = [(one.life, one.life.readiness) for one in (wire, narrow)]
    yield
    for life, readiness in phases:
        life._readiness = readiness


def scripted(wire: Wire, script: Any) -> AbstractContextManager[Any]:
    """The engine does this from now on."""
    wire.engine.script = script
    return nullcontext()


def drained() -> Life:
    """A life that is ending."""
    life = Life()
    life.become_ready()
    life.begin_draining()
    return life


def lived(wire: Wire, life: Life) -> AbstractContextManager[Any]:
    """The server is in that phase from now on."""
    wire.life._readiness = life.readiness
    return nullcontext()


def refused(wire: Wire, one: Client, code: str, ask: Callable[[Client], Any] = chat) -> openai.APIStatusError:
    """Ask, and check everything that the table says of the refusal."""
    status, kind, retry, raised_class = TABLE[code]
    wire.attempts.clear()
    with one, pytest.raises(openai.APIStatusError) as raised:
        ask(one)
    error = raised.value
    assert type(error) is raised_class
    assert (error.status_code, error.type, error.code) == (status, kind, code)
    assert isinstance(error.body, dict)
    assert error.body.keys() == {"message", "type", "param", "code"}
    assert error.request_id
    headers = error.response.headers
    assert int(headers["openai-processing-ms"]) >= 0
    assert headers["content-type"] == "application/json"
    assert len(wire.attempts) == ATTEMPTS[retry]
    assert headers["x-should-retry"] == ("true" if retry == YES else "false")
    assert ("retry-after" in headers) == ("retry-after-ms" in headers) == (retry == YES)
    if retry == YES:
        assert 0 < int(headers["retry-after-ms"]) <= 1000 * int(headers["retry-after"]) <= 120_000
        assert one.waits == one.told, "the client waits as it is told"
    return error


@pytest.mark.parametrize("code", ASKED_WRONGLY)
def test_what_can_never_succeed_is_asked_once(wire: Wire, code: str) -> None:
    """A mistake of the caller's is told, and not sent again."""
    error = refused(wire, client(wire), code, ASKED_WRONGLY[code])
    assert wire.engine.calls == []
    if code == "method_not_allowed":
        assert error.response.headers["allow"] == "GET"


@pytest.mark.parametrize("code", STRANGERS)
def test_who_may_not_ask_is_told_so_once(wire: Wire, code: str) -> None:
    """By keys of the keys file and tokens of a provider."""
    error = refused(wire, client(wire, STRANGERS[code](wire)), code)
    assert ("www-authenticate" in error.response.headers) == (error.status_code == 401)
    assert wire.engine.calls == []


def test_a_key_s_own_scopes_are_kept_to(wire: Wire) -> None:
    """As those of its tenant's policy are; and a good token is let in."""
    refused(wire, client(wire, wire.key("chat-only")), "scope_missing", lambda one: one.models.list())
    with client(wire, wire.pair.token()) as one:
        assert [model.id for model in one.models.list()] == ["scripted"]


@pytest.mark.parametrize("code", ASKED_IN_VAIN)
def test_what_the_server_cannot_do_now_is_asked_again(wire: Wire, code: str) -> None:
    """As often as the table says, and no secret is told."""
    with ASKED_IN_VAIN[code](wire):
        assert "secret" not in refused(wire, client(wire), code).message


def test_an_engine_that_is_gone_is_unavailable(wire: Wire) -> None:
    """As soon as the server knows, without asking it."""
    gone = Life()
    gone.fail("the engine died")
    with lived(wire, gone):
        refused(wire, client(wire), "engine_unavailable")
    assert wire.engine.calls == []


def test_a_deadline_is_a_timeout(wire: Wire) -> None:
    """Lowered by the caller; the engine is told to stop."""
    wire.engine.script = hangs()
    refused(
        wire,
        client(wire),
        "deadline_exceeded",
        lambda one: chat(one, extra_headers={"x-request-timeout-ms": "50"}),
    )
    assert len(wire.engine.aborted) >= ATTEMPTS[YES]


def test_a_rate_is_waited_for(wire: Wire) -> None:
    """For as long as the books say."""
    with client(wire, wire.key("one-a-minute")) as first:
        chat(first)
    one = client(wire, wire.key("one-a-minute"))
    error = refused(wire, one, "rate_limit_exceeded")
    # No wait of the client's own making is so long; less than a minute is left if something held the test up.
    assert 8 < one.waits[-1] <= 61
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_what_never_fits_a_rate_is_not_asked_again(wire: Wire) -> None:
    """The code is the rate's, the advice is not."""
    with client(wire, wire.key("few-tokens")) as one, pytest.raises(openai.RateLimitError) as raised:
        chat(one, max_tokens=100)
    assert raised.value.code == "rate_limit_exceeded"
    assert raised.value.response.headers["x-should-retry"] == "false"
    assert len(wire.attempts) == 1


def test_a_quota_that_is_used_up_is_not_asked_again(wire: Wire) -> None:
    """Though the status is that of a rate."""
    refused(wire, client(wire, wire.key("spent")), "insufficient_quota", lambda one: chat(one, max_tokens=100))


def test_requests_under_way_are_waited_for(wire: Wire) -> None:
    """By the next of the same key, and by nobody else."""
    wire.engine.script = hangs()
    with wire.occupied("one-at-a-time"):
        refused(wire, client(wire, wire.key("one-at-a-time")), "concurrency_exceeded")
        wire.engine.script = ScriptedEngine().script
        with client(wire) as another:
            chat(another)


def test_a_full_queue_is_waited_for(narrow: Wire) -> None:
    """One runs, one waits, the third comes back later."""
    narrow.engine.script = hangs()
    with narrow.occupied("patient", requests=2):
        refused(narrow, client(narrow, narrow.key("patient")), "queue_full")


def test_bodies_beyond_the_server_s_room_are_waited_for(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before they are read, with the time to come back; and served when there is room."""
    monkeypatch.setattr(wire.bodies, "_most", 600)
    with wire.uploading("patient", 500):
        refused(wire, client(wire), "queue_full", lambda one: chat(one, messages=[says("x" * 100)]))
    with client(wire) as one:
        chat(one, messages=[says("x" * 100)])


def test_a_body_that_outlasts_the_deadline_is_a_timeout(wire: Wire) -> None:
    """Not a `body_timeout`, which is not asked again."""
    options: Any = {"headers": {"content-type": "application/json", "x-request-timeout-ms": "100"}}
    with client(wire).with_options(max_retries=0) as one, pytest.raises(openai.InternalServerError) as raised:
        one.post("/chat/completions", cast_to=object, content=starved_body(), options=options)
    assert (raised.value.status_code, raised.value.code) == (504, "deadline_exceeded")


def test_who_would_wait_too_long_comes_back_later(narrow: Wire) -> None:
    """Refused at the door, before the wait."""
    narrow.engine.script = hangs()
    with narrow.occupied("patient"):
        refused(narrow, client(narrow, narrow.key("impatient")), "wait_too_long")


def test_a_client_that_comes_back_is_served(wire: Wire) -> None:
    """What it was told to wait for has come."""
    ready = wire.life.readiness
    with client(wire) as one, lived(wire, Life()):
        one.meanwhile = lambda: setattr(wire.life, "_readiness", ready)
        chat(one)
        assert len(wire.attempts) == 2
        assert one.waits == [pytest.approx(1.0)]


@pytest.mark.parametrize(
    ("fault", "code", "kind"),
    [
        (engine_lost(), "engine_unavailable", UNAVAILABLE),
        (shutting_down(), "draining", UNAVAILABLE),
        (DeadlineExceeded("Late."), "deadline_exceeded", TIMEOUT),
        (ValueError("a secret of the server's"), "internal_error", FAULT),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_within_a_stream_is_raised(wire: Wire, fault: Exception, code: str, kind: str) -> None:
    """With its code, after what was received before it; a stream that began is not begun again."""
    wire.engine.script = streams(event("one"), event("two"), fault)
    received = []
    with client(wire) as one, pytest.raises(openai.APIError) as raised:
        received.extend(chat(one, stream=True))
    assert type(raised.value) is openai.APIError
    assert (raised.value.code, raised.value.type) == (code, kind)
    assert "secret" not in raised.value.message
    assert len(received) == 2
    assert len(wire.attempts) == 1


def test_every_row_is_produced_here() -> None:
    """And nothing that is not in the table."""
    assert {*ASKED_WRONGLY, *ASKED_IN_VAIN, *STRANGERS, *CROWDED} == TABLE.keys()
