"""What the edge takes and what it refuses, before anything is asked of an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jubako.boundary import routes
from jubako.boundary.application import Application
from jubako.errors import MethodNotAllowed, NotFound
from tests.caller import CHAT, LIMITS, Caller, ready_pipeline
from tests.scripted_engine import ScriptedEngine


async def answered(caller: Caller) -> Caller:
    """The caller, after its request."""
    return await caller.call(ready_pipeline(ScriptedEngine()))


async def test_a_body_that_comes_too_slowly_is_refused() -> None:
    """408, and the connection is not kept for the rest."""
    caller = Caller(body_follows=True, headers={"content-length": "500"})
    caller.send_body(b"{", more=True)
    await answered(caller)
    assert (caller.status, caller.error["code"]) == (408, "body_timeout")
    assert caller.error["type"] == "invalid_request_error"
    assert caller.headers["connection"] == "close"
    assert caller.headers["x-should-retry"] == "false"


async def test_a_body_that_declares_too_much_is_refused_unread() -> None:
    """413 without waiting for a byte."""
    caller = await answered(Caller(body_follows=True, headers={"content-length": str(LIMITS.body_bytes + 1)}))
    assert (caller.status, caller.error["code"]) == (413, "request_too_large")
    assert caller.headers["connection"] == "close"


@pytest.mark.parametrize("declared", ["99999999999999999999999999", "3", "-1", "many", ""])
async def test_a_body_is_counted_whatever_it_declares(declared: str) -> None:
    """The bytes that arrive are what counts."""
    caller = Caller(body_follows=True, headers={"content-length": declared})
    caller.send_body(b"x" * LIMITS.body_bytes, more=True)
    caller.send_body(b"x", more=True)
    assert (await answered(caller)).status == 413


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    """The limit itself is within it."""
    body = json.dumps({"messages": []}).encode()
    caller = await answered(Caller(body + b" " * (LIMITS.body_bytes - len(body))))
    assert caller.status == 200


async def test_a_body_in_many_parts_is_one() -> None:
    """Empty parts included."""
    caller = Caller(body_follows=True)
    for part in (b'{"n"', b"", b": 1"):
        caller.send_body(part, more=True)
    caller.send_body(b"}")
    assert (await answered(caller)).status == 200
    assert "connection" not in caller.headers


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/models/", "/v1/models//", "/V1/models", "//v1/models", "/docs.json"]
)
def test_unknown_paths_are_refused(path: str) -> None:
    """Exactly the paths that exist exist; a name of slashes is left to be an unknown model."""
    if path == "/v1/models//":
        assert routes.match("GET", path).model == "/"
        return
    with pytest.raises(NotFound):
        routes.match("GET", path)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x", CHAT, "/v1/completions"])
def test_a_known_path_has_one_method(path: str) -> None:
    """All others are told which."""
    for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "get", "POST", "GET"):
        allowed = "GET" if "models" in path else "POST"
        if method == allowed:
            routes.match(method, path)
            continue
        with pytest.raises(MethodNotAllowed) as raised:
            routes.match(method, path)
        assert raised.value.allow == allowed


@pytest.mark.parametrize("sent", ["a", "A.b_c-9", "x" * 128])
async def test_a_valid_request_id_comes_back(sent: str) -> None:
    """So that a caller's trace and ours meet."""
    assert (await answered(Caller({}, headers={"x-request-id": sent}))).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "ä", "a/b", "{}", "a\n", "*"])
async def test_an_invalid_request_id_is_replaced(sent: str) -> None:
    """By 32 hexadecimal digits that are new each time."""
    ids = {(await answered(Caller({}, headers={"x-request-id": sent}))).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/nope"])
async def test_every_reply_tells_its_id_and_time(path: str) -> None:
    """Refusals included."""
    headers = (await answered(Caller({}, path=path))).headers
    assert headers["x-request-id"]
    assert int(headers["openai-processing-ms"]) >= 0


async def test_websockets_are_closed() -> None:
    """No route speaks them."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await Application(ready_pipeline(ScriptedEngine()))({"type": "websocket"}, None, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
