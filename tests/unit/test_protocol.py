"""From bytes to a JSON object: what is text, what is JSON, and nothing that another parser would read otherwise."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.boundary import protocol
from jubako.errors import InvalidRequest, UnsupportedMediaType
from tests.boundary_limits import configured

JSON = "application/json"


def parse(body: bytes, content_type: str | None = JSON) -> dict[str, Any]:
    """What the configured limits let through."""
    return protocol.parse(body, content_type, configured())


def test_where_json_ends_being_json_is_told() -> None:
    """Line and column, for the caller's editor; not the text around it."""
    with pytest.raises(InvalidRequest, match=r"line 2, column 5") as raised:
        parse(b'{\n"a" secret}')
    assert "secret" not in raised.value.message


def test_a_whole_surrogate_pair_is_text() -> None:
    """Escaped or not, what is text passes as it is."""
    assert parse('{"a": "\\ud83c\\udf71🍱"}'.encode()) == {"a": "🍱🍱"}


@pytest.mark.parametrize(
    "body",
    [b'{"n": 1, "n": 2}', b'{"n": 1, "\\u006e": 2}', b'{"a": [{"b": {"c": 1, "d": 2, "c": 1}}]}', b'{"": 1, "": 1}'],
)
def test_one_key_twice_is_refused(body: bytes) -> None:
    """Of two, one parser takes the first and another the last: what was checked must be what is used."""
    with pytest.raises(InvalidRequest, match="one key twice") as raised:
        parse(body)
    assert raised.value.code == "invalid_json"


@pytest.mark.parametrize("value", [JSON, "Application/JSON", "application/json; charset=utf-8", " application/json ;x"])
def test_json_may_say_so_in_any_spelling(value: str) -> None:
    """Case, spaces and parameters do not matter."""
    assert parse(b"{}", value) == {}


@pytest.mark.parametrize(
    "value", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"]
)
def test_anything_else_is_an_unsupported_media_type(value: str | None) -> None:
    """A browser's form cannot post to the API."""
    with pytest.raises(UnsupportedMediaType):
        parse(b"{}", value)


@pytest.mark.parametrize(("value", "stream"), [(True, True), (1, True), ("true", True), (False, False), (0, False)])
def test_stream_is_read_as_the_engine_reads_it(value: object, *, stream: bool) -> None:
    """One reading for both, or a stream would meet code that expects a whole reply."""
    assert parse(json.dumps({"stream": value}).encode())["stream"] is stream


@pytest.mark.parametrize("value", ["perhaps", 2, [], {}])
def test_stream_must_be_a_boolean(value: object) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequest) as raised:
        parse(json.dumps({"stream": value}).encode())
    assert raised.value.param == "stream"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(body: bytes) -> None:
    """Bytes give an object or a refusal."""
    parsed: object = {}
    with suppress(InvalidRequest):
        parsed = parse(body)
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
        assert parse(body) == document


@pytest.mark.parametrize("raw", [b"\xed\xa0\x80", b"\xff\xfe"], ids=["half a surrogate pair", "no UTF-8"])
def test_bytes_that_are_no_text_are_refused(raw: bytes) -> None:
    """Wherever they stand: the tokenizer could not take them, and no reply could hold them."""
    with pytest.raises(InvalidRequest) as raised:
        parse(b'{"stop": "' + raw + b'"}')
    assert raised.value.code == "invalid_json"


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
def test_a_body_that_is_not_a_json_object_is_refused(body: bytes) -> None:
    """400 `invalid_json`, whatever it is instead, and the text is not repeated."""
    with pytest.raises(InvalidRequest) as raised:
        parse(body)
    assert raised.value.code == "invalid_json"
    assert "ud800" not in raised.value.message
