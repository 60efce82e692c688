"""The order of a request's steps: who is refused before what, and what reaches the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jubako.errors import Refusal
from jubako.life import Life
from jubako.vocabulary import Scope
from tests.caller import CHAT, Caller, policy, ready_pipeline
from tests.scripted_engine import ScriptedEngine, raises, says

ASKED = {"messages": [{"role": "user", "content": "hello"}]}


async def test_the_engine_is_asked_what_the_caller_asked() -> None:
    """The body arrives as it was sent; the reply goes out as the engine wrote it."""
    engine = ScriptedEngine(says({"answer": 1}))
    caller = await Caller(ASKED).call(ready_pipeline(engine))
    assert (caller.status, caller.body) == (200, b'{"answer": 1}')
    assert engine.calls[0].body == ASKED
    assert engine.calls[0].principal.tenant == "default"
    assert engine.aborted == []


async def test_two_requests_of_one_id_are_two_to_the_engine() -> None:
    """The caller's id comes back to it, and the engine's own id is nobody else's."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine)
    callers = [await Caller(ASKED, headers={"x-request-id": "mine"}).call(pipeline) for _ in range(2)]
    assert {caller.headers["x-request-id"] for caller in callers} == {"mine"}
    ids = {call.request_id for call in engine.calls}
    assert len(ids) == 2
    assert all(one.startswith("mine-") for one in ids)


async def test_a_caller_who_leaves_while_sending_never_reaches_the_engine() -> None:
    """Half a body is no request."""
    engine = ScriptedEngine()
    caller = Caller(body_follows=True)
    caller.send_body(b'{"mess', more=True)
    caller.leave()
    await caller.call(ready_pipeline(engine))
    assert engine.calls == []
    assert caller.sent == []


@pytest.mark.parametrize(
    ("phase", "code"), [("starting", "not_ready"), ("draining", "draining"), ("failed", "engine_unavailable")]
)
async def test_only_a_ready_server_takes_requests(phase: str, code: str) -> None:
    """Each other phase has its own code, and all say that another try may do."""
    life = Life()
    if phase != "starting":
        life.become_ready()
        life.begin_draining() if phase == "draining" else life.fail("the engine died")
    engine = ScriptedEngine()
    caller = await Caller(ASKED).call(ready_pipeline(engine, life=life))
    assert (caller.status, caller.error["code"]) == (503, code)
    assert caller.error["type"] == "service_unavailable_error"
    assert caller.headers["x-should-retry"] == "true"
    assert int(caller.headers["retry-after"]) >= 1
    assert int(caller.headers["retry-after-ms"]) >= 1
    assert engine.calls == []


async def test_a_stranger_learns_nothing_of_the_server_s_phase() -> None:
    """Authentication comes before readiness, and a path before authentication."""
    life = Life()
    stranger = {"authorization": "Bearer somebody-else"}
    pipeline = ready_pipeline(ScriptedEngine(), life=life)
    assert (await Caller(ASKED, headers=stranger).call(pipeline)).status == 401
    assert (await Caller(ASKED, headers=stranger, path="/nope").call(pipeline)).status == 404


async def test_the_body_of_a_stranger_is_not_read() -> None:
    """A refusal waits for nothing, and the connection is not kept for the rest of the body."""
    caller = Caller(body_follows=True, headers={"authorization": "Bearer wrong", "content-length": "900"})
    await caller.call(ready_pipeline(ScriptedEngine()))
    assert caller.status == 401
    assert caller.headers["connection"] == "close"


async def test_a_scope_that_is_missing_is_told() -> None:
    """Before the body is read."""
    pipeline = ready_pipeline(ScriptedEngine(), given=policy(scopes=frozenset({Scope.MODELS})))
    caller = await Caller(body_follows=True).call(pipeline)
    assert (caller.status, caller.error["code"]) == (403, "scope_missing")


async def test_a_name_that_is_not_approved_is_one_that_is_not_there() -> None:
    """In the list, by itself, and to be asked."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine, given=policy(models=frozenset()))
    listed = await Caller(path="/v1/models", method="GET").call(pipeline)
    assert b'"data":[]' in listed.body
    for caller in (Caller(path="/v1/models/scripted", method="GET"), Caller(ASKED)):
        await caller.call(pipeline)
        assert (caller.status, caller.error["code"]) == (404, "model_not_found")
    assert engine.calls == []


async def test_models_need_no_body() -> None:
    """The list and one model come from the engine; a name that it does not know is its refusal."""
    pipeline = ready_pipeline(ScriptedEngine())
    listed, shown, unknown = [
        await Caller(b"", method="GET", path=f"/v1/models{name}").call(pipeline) for name in ("", "/scripted", "/gpt-4")
    ]
    assert (listed.status, shown.status, unknown.status) == (200, 200, 404)
    assert (unknown.error["code"], unknown.error["param"]) == ("model_not_found", "model")


async def test_only_what_constrains_a_reply_is_vetted() -> None:
    """Before a place in the engine is taken."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine)
    await Caller(ASKED).call(pipeline)
    assert engine.vetted == []
    await Caller({**ASKED, "response_format": {"type": "json_object"}}).call(pipeline)
    assert [call.request_id for call in engine.vetted] == [engine.calls[1].request_id]


async def test_each_tenant_has_a_salt_of_its_own() -> None:
    """The same for all its requests, and nobody else's; no caller sees or sets it."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine)
    for tenant in ("default", "default", "another"):
        pipeline.authenticator.principal = replace(pipeline.authenticator.principal, tenant=tenant)  # type: ignore[attr-defined]
        await Caller(ASKED).call(pipeline)
    salts = [call.cache_salt for call in engine.calls]
    assert salts[0] == salts[1] != salts[2]
    assert all(len(salt) == 64 for salt in salts)


def _classes(parent: type[Refusal]) -> list[type[Refusal]]:
    return [parent, *(inner for child in parent.__subclasses__() for inner in _classes(child))]


@pytest.mark.parametrize("refusal", sorted(_classes(Refusal), key=str))
async def test_every_refusal_says_whether_to_retry(refusal: type[Refusal]) -> None:
    """`x-should-retry` is always there; when it says yes, so is how long to wait."""
    options: dict[str, Any] = {"allow": "GET"} if refusal.__name__ == "MethodNotAllowed" else {}
    error = refusal("no", **options)
    caller = await Caller(ASKED, path=CHAT).call(ready_pipeline(ScriptedEngine(raises(error))))
    assert caller.status == refusal.status
    assert caller.headers["x-should-retry"] == ("true" if refusal.retry else "false")
    assert ("retry-after" in caller.headers) is ("retry-after-ms" in caller.headers) is refusal.retry
    assert set(caller.error) == {"message", "type", "param", "code"}
    assert isinstance(caller.error["code"], str)
