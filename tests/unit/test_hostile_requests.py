"""No request breaks the check, hostile or by chance: each is taken or refused, by name and in few words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.boundary import fields, limits, protocol
from jubako.errors import Refusal
from jubako.vocabulary import Route
from tests.boundary_limits import DEFAULT
from tests.hostile import CHAT, HOSTILE, Hostile

TEXT = "application/json"
NAMES = st.sampled_from(sorted({*fields.CHAT.open, *fields.COMPLETIONS.open, *fields.CHAT.ignored}))
INNER = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "url", "image_url", "json", "regex", "schema"]
)
SHAPED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
    | st.sampled_from(["text", "image_url", "json_schema", "function"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(INNER, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("one", HOSTILE, ids=lambda one: one.name)
def test_the_hostile_are_refused_early_or_left_to_the_engine(one: Hostile) -> None:
    """As the corpus says of each; a reason never repeats a long value."""
    route = Route.CHAT if one.path == CHAT else Route.COMPLETIONS
    refusal = None
    try:
        parsed = protocol.parse(one.body, one.headers.get("content-type"), DEFAULT)
        _, demand = limits.check(route, parsed, DEFAULT, media_salt="salt")
        assert demand.grammar or not one.grammar
    except Refusal as refused:
        refusal = refused
    assert (refusal is not None) == one.early
    if refusal is not None:
        assert refusal.status in one.statuses
        assert len(refusal.message) < 300


def test_the_corpus_is_large_and_its_names_are_its_own() -> None:
    """At least two hundred, on both routes."""
    assert len({one.name for one in HOSTILE}) == len(HOSTILE) >= 200
    assert len({one.path for one in HOSTILE}) == 2


@given(st.dictionaries(NAMES, SHAPED, max_size=6), st.sampled_from([Route.CHAT, Route.COMPLETIONS]))
def test_no_json_breaks_the_check(document: dict[str, Any], route: Route) -> None:
    """Whatever it is, it is taken or refused."""
    try:
        parsed = protocol.parse(json.dumps(document).encode(), TEXT, DEFAULT)
        body, demand = limits.check(route, parsed, DEFAULT, media_salt="salt")
    except Refusal as refused:
        assert refused.status == 400  # noqa: PT017 - either is right
    else:
        assert body.keys() <= fields.ROUTES[route].open.keys() | {"truncation_side"}
        assert demand.sequences >= 1
        assert demand.tokens >= 1
