"""What the edge takes and what it refuses, before anything is asked of an engine."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.boundary import protocol, routes
from jubako.boundary.application import Application
from jubako.errors import InvalidRequest, MethodNotAllowed, NotFound, UnsupportedMediaType
from jubako.settings import LimitSettings
from tests.caller import CHAT, LIMITS, Caller, ready_pipeline
from tests.scripted_engine import ScriptedEngine

JSON = "application/json"


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
    body = json.dumps({"messages": ""}).encode()
    caller = await answered(Caller(body + b" " * (LIMITS.body_bytes - len(body))))
    assert caller.status == 200


async def test_a_body_in_many_parts_is_one() -> None:
    """Empty parts included."""
    caller = Caller(body_follows=True)
    for part in (b'{"a"', b"", b": 1"):
        caller.send_body(part, more=True)
    caller.send_body(b"}")
    assert (await answered(caller)).status == 200
    assert "connection" not in caller.headers


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"null",
        b'{"a": 1} x',
        b'{"a": \xff}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": -1e999}',
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": ["b", {"c": "x\\udc00y"}]}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": "\\u0041", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    """400 `invalid_json`, whatever it is instead, and the text is not repeated."""
    limits = LimitSettings(body_bytes=1 << 20, body_seconds=5, reply_seconds=5)
    caller = await Caller(body).call(ready_pipeline(ScriptedEngine(), limits=limits))
    assert (caller.status, caller.error["code"]) == (400, "invalid_json")
    assert b"ud800" not in caller.body


def test_where_json_ends_being_json_is_told() -> None:
    """Line and column, for the caller's editor; not the text around it."""
    with pytest.raises(InvalidRequest, match=r"line 2, column 5") as raised:
        protocol.parse(b'{\n"a" secret}', JSON)
    assert "secret" not in raised.value.message


def test_a_whole_surrogate_pair_is_text() -> None:
    """Escaped or not, what is text passes as it is."""
    assert protocol.parse('{"a": "\\ud83c\\udf71🍱"}'.encode(), JSON) == {"a": "🍱🍱"}


def test_of_duplicate_keys_the_last_counts() -> None:
    """As with OpenAI; a privileged one is refused however often it stands there."""
    assert protocol.parse(b'{"n": 1, "n": 2}', JSON) == {"n": 2}
    with pytest.raises(InvalidRequest):
        protocol.parse(b'{"priority": null, "priority": 1}', JSON)


@pytest.mark.parametrize("field", sorted(protocol.PRIVILEGED_FIELDS))
@pytest.mark.parametrize("value", [None, "x"])
def test_privileged_fields_are_refused_by_name(field: str, value: object) -> None:
    """Whatever the value, null included."""
    with pytest.raises(InvalidRequest) as raised:
        protocol.parse(json.dumps({field: value}).encode(), JSON)
    assert (raised.value.code, raised.value.param) == ("unknown_field", field)


@pytest.mark.parametrize("value", [JSON, "Application/JSON", "application/json; charset=utf-8", " application/json ;x"])
def test_json_may_say_so_in_any_spelling(value: str) -> None:
    """Case, spaces and parameters do not matter."""
    assert protocol.parse(b"{}", value) == {}


@pytest.mark.parametrize(
    "value", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"]
)
def test_anything_else_is_an_unsupported_media_type(value: str | None) -> None:
    """A browser's form cannot post to the API."""
    with pytest.raises(UnsupportedMediaType):
        protocol.parse(b"{}", value)


@pytest.mark.parametrize(("value", "stream"), [(True, True), (1, True), ("true", True), (False, False), (0, False)])
async def test_stream_is_read_as_the_engine_reads_it(value: object, *, stream: bool) -> None:
    """One reading for both, or a stream would meet code that expects a whole reply."""
    assert protocol.parse(json.dumps({"stream": value}).encode(), JSON)["stream"] is stream


@pytest.mark.parametrize("value", ["perhaps", 2, [], {}])
def test_stream_must_be_a_boolean(value: object) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequest) as raised:
        protocol.parse(json.dumps({"stream": value}).encode(), JSON)
    assert raised.value.param == "stream"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(body: bytes) -> None:
    """Bytes give an object or a refusal."""
    parsed: object = {}
    with suppress(InvalidRequest):
        parsed = protocol.parse(body, JSON)
    assert isinstance(parsed, dict)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key != "stream"), VALUES, max_size=5))
def test_what_is_json_arrives_as_it_was(document: dict[str, Any]) -> None:
    """Escaped or not, nothing is changed."""
    for ascii_only in (True, False):
        try:
            body = json.dumps(document, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:
            continue
        if not protocol.PRIVILEGED_FIELDS & document.keys():
            assert protocol.parse(body, JSON) == document


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


@pytest.mark.parametrize("raw", [b"\xed\xa0\x80", b"\xff\xfe"], ids=["half a surrogate pair", "no UTF-8"])
def test_bytes_that_are_no_text_are_refused(raw: bytes) -> None:
    """Wherever they stand: the tokenizer could not take them, and no reply could hold them."""
    with pytest.raises(InvalidRequest) as raised:
        protocol.parse(b'{"stop": "' + raw + b'"}', JSON)
    assert raised.value.code == "invalid_json"
