"""Depth and number of values of a body are bounded before it is parsed; a prompt's token ids are no values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.boundary import limits, protocol
from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.boundary_limits import configured, limited

TEXT = "application/json"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
IDS = st.lists(st.integers(0, 10**6), max_size=30)


@pytest.mark.parametrize("depth", [4, 32])
def test_depth_is_inclusive(depth: int) -> None:
    """Whatever stands in texts."""
    limit = limited(json_depth=depth)
    for text in ('"', "\\\\", '\\"[[[[{{{{', "]" * 50, "[" * 50):
        inner = b'{"a":' + json.dumps(text).encode() + b',"b":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
        protocol.parse(inner, TEXT, limit)
        deeper = inner.replace(b',"b":', b',"b":[').removesuffix(b"}") + b"]}"
        with pytest.raises(InvalidRequest, match=f"nested deeper than {depth} levels") as raised:
            protocol.parse(deeper, TEXT, limit)
        assert raised.value.code == "invalid_json"


def counted(value: Any) -> tuple[int, int]:
    """Depth, and keys and items, by walking."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return 0, 0
    below = [counted(one) for one in inner]
    return 1 + max((depth for depth, _ in below), default=0), len(inner) + sum(count for _, count in below)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_depth_and_values_are_counted_without_parsing(document: Any, ascii_only: bool, indent: int | None) -> None:
    """The scan of bytes finds the same numbers as a walk over what was parsed."""
    try:
        body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return
    depth, values = counted(document)
    protocol.require_bounded(body, limited(json_depth=depth, json_values=max(values, 1), prompt_tokens=0))
    if values > 1:
        with pytest.raises(InvalidRequest, match="keys and items"):
            protocol.require_bounded(body, limited(json_depth=depth, json_values=values - 1, prompt_tokens=0))
    if depth > 1:
        with pytest.raises(InvalidRequest, match="nested deeper"):
            protocol.require_bounded(body, limited(json_depth=depth - 1, json_values=max(values, 1)))


def ids_in(value: Any) -> int:
    """Items of lists of two and more whole numbers, by walking."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(value, list) and len(value) > 1 and all(type(one) is int and one >= 0 for one in value):
        return len(value)
    return sum(map(ids_in, inner))


@given(
    st.dictionaries(st.text(max_size=4), VALUES | IDS | st.lists(IDS, max_size=4), max_size=5),
    st.integers(0, 40),
    st.sampled_from([None, 1]),
)
def test_token_ids_of_one_prompt_are_no_values(document: Any, prompt_tokens: int, indent: int | None) -> None:
    """Those beyond are, and so is everything else."""
    body = json.dumps(document, indent=indent).encode()
    _, values = counted(document)
    values -= min(ids_in(document), prompt_tokens)
    lists = body.count(b"[") + body.count(b"{")
    protocol.require_bounded(body, limited(json_values=max(values, lists, 1), prompt_tokens=prompt_tokens))
    if values > 1:
        with pytest.raises(InvalidRequest, match="keys and items"):
            protocol.require_bounded(body, limited(json_values=values - 1, prompt_tokens=prompt_tokens))


@pytest.mark.parametrize("indent", [None, 1])
def test_a_prompt_of_as_many_token_ids_as_may_be_is_taken(indent: int | None) -> None:
    """By the configured limits, where more values than ids are not allowed; one id more is too long a prompt."""
    given_ = configured()
    assert given_.json_values < given_.prompt_tokens
    for extra, code in ((0, ""), (1, "context_length_exceeded"), (given_.json_values, "invalid_json")):
        asked = {"model": "m", "prompt": [50_000] * (given_.prompt_tokens + extra), "max_tokens": 1}
        body = json.dumps(asked, indent=indent).encode()
        assert len(body) < given_.body_bytes
        raised = ""
        try:
            found = protocol.parse(body, "application/json", given_)
            limits.check(Route.COMPLETIONS, found, given_, media_salt="salt")
        except InvalidRequest as refusal:
            raised = refusal.code
        assert raised == code
