"""Each limit: what is at it passes, what is one above is refused by name, and no type breaks the check."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.boundary import fields, limits, protocol
from jubako.boundary.fields import Whole
from jubako.errors import InvalidRequest, Refusal
from jubako.vocabulary import Demand, Limits, Route
from tests.boundary_limits import configured, limited
from tests.hostile import CHAT, HOSTILE, Hostile, says

DEFAULT = configured()
TEXT = "application/json"
FUNCTION = {"type": "function", "function": {"name": "x"}}


def check(route: Route, limit: Limits | None = None, /, **body: Any) -> tuple[dict[str, Any], Demand]:
    """The body and the demand of a request that is harmless but for `body`."""
    prompt = {"messages": says("Hello")} if route is Route.CHAT else {"prompt": "Hello"}
    return limits.check(route, prompt | body, limit or DEFAULT, media_salt="salt")


def schema(size: int) -> dict[str, Any]:
    """A schema of so many bytes as JSON."""
    return {"description": "x" * (size - len('{"description":""}'))}


BOUNDS: list[tuple[str, Route, dict[str, int], dict[str, Any], dict[str, Any], str, str]] = [
    # limit, route, limits, at the limit, one above, param, code
    ("messages", Route.CHAT, {"messages": 2}, {"messages": says("x") * 2}, {"messages": says("x") * 3}, "messages", ""),
    (
        "message characters",
        Route.CHAT,
        {"message_characters": 9},
        {"messages": says("x" * 5)},
        {"messages": says("é" * 6)},
        "messages.0",
        "context_length_exceeded",
    ),
    (
        "message characters in parts",
        Route.CHAT,
        {"message_characters": 9},
        {"messages": says([{"type": "text", "text": "xxx"}, "xx"])},
        {"messages": says([{"type": "text", "text": "xxx"}, "xxx"])},
        "messages.0",
        "context_length_exceeded",
    ),
    (
        "prompt characters in messages",
        Route.CHAT,
        {"prompt_characters": 20},
        {"messages": says("x" * 6) * 2},
        {"messages": [*says("x" * 6), *says("x" * 7)]},
        "messages",
        "context_length_exceeded",
    ),
    (
        "prompt characters with documents",
        Route.CHAT,
        {"prompt_characters": 20},
        {"documents": [{"text": "x" * 7}]},
        {"documents": [{"text": "x" * 8}]},
        "messages",
        "context_length_exceeded",
    ),
    (
        "prompt characters with template arguments",
        Route.CHAT,
        {"prompt_characters": 20},
        {"chat_template_kwargs": {"a": "x" * 10}},
        {"chat_template_kwargs": {"a": "x" * 11}},
        "messages",
        "context_length_exceeded",
    ),
    (
        "prompt characters in prompts",
        Route.COMPLETIONS,
        {"prompt_characters": 10},
        {"prompt": ["x" * 5] * 2},
        {"prompt": ["x" * 5, "x" * 6]},
        "prompt",
        "context_length_exceeded",
    ),
    ("prompts", Route.COMPLETIONS, {"prompts": 2}, {"prompt": ["x"] * 2}, {"prompt": ["x"] * 3}, "prompt", ""),
    ("prompts of ids", Route.COMPLETIONS, {"prompts": 2}, {"prompt": [[1]] * 2}, {"prompt": [[1]] * 3}, "prompt", ""),
    (
        "prompt tokens",
        Route.COMPLETIONS,
        {"prompt_tokens": 3},
        {"prompt": [1] * 3},
        {"prompt": [1] * 4},
        "prompt",
        "context_length_exceeded",
    ),
    (
        "prompt tokens of one of many",
        Route.COMPLETIONS,
        {"prompt_tokens": 3},
        {"prompt": [[1], [1] * 3]},
        {"prompt": [[1], [1] * 4]},
        "prompt",
        "context_length_exceeded",
    ),
    ("choices", Route.CHAT, {"choices": 2}, {"n": 2}, {"n": 3}, "n", ""),
    (
        "choices of all prompts",
        Route.COMPLETIONS,
        {"sequences": 5},
        {"prompt": ["a", "b"], "n": 2},
        {"prompt": ["a", "b"], "n": 3},
        "n",
        "",
    ),
    (
        "log-probabilities of prompts",
        Route.COMPLETIONS,
        {},
        {"prompt": [1] * 1000, "prompt_logprobs": 20},
        {"prompt": [1] * 1001, "prompt_logprobs": 20},
        "prompt_logprobs",
        "",
    ),
    ("output tokens", Route.CHAT, {"output_tokens": 9}, {"max_tokens": 9}, {"max_tokens": 10}, "max_tokens", ""),
    (
        "output tokens of the newer name",
        Route.CHAT,
        {"output_tokens": 9},
        {"max_completion_tokens": 9},
        {"max_completion_tokens": 10, "max_tokens": 1},
        "max_completion_tokens",
        "",
    ),
    (
        "least tokens without a number",
        Route.COMPLETIONS,
        {},
        {"min_tokens": 16},
        {"min_tokens": 17},
        "min_tokens",
        "",
    ),
    (
        "logprobs",
        Route.CHAT,
        {"logprobs": 3},
        {"logprobs": True, "top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 4},
        "top_logprobs",
        "",
    ),
    ("logprobs of a completion", Route.COMPLETIONS, {"logprobs": 3}, {"logprobs": 3}, {"logprobs": 4}, "logprobs", ""),
    (
        "logprobs of the prompt",
        Route.CHAT,
        {"logprobs": 3},
        {"prompt_logprobs": 3},
        {"prompt_logprobs": 4},
        "prompt_logprobs",
        "",
    ),
    ("stops", Route.CHAT, {"stops": 2}, {"stop": ["a", "b"]}, {"stop": ["a", "b", "c"]}, "stop", ""),
    ("stop characters", Route.CHAT, {"stop_characters": 2}, {"stop": "ab"}, {"stop": "abc"}, "stop", ""),
    ("tools", Route.CHAT, {"tools": 1}, {"tools": [FUNCTION]}, {"tools": [FUNCTION] * 2}, "tools", ""),
    (
        "schema bytes",
        Route.CHAT,
        {"schema_bytes": 40},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema(40)}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema(41)}}},
        "response_format.json_schema.schema",
        "",
    ),
    (
        "bytes of a tool's schema",
        Route.CHAT,
        {"schema_bytes": 40},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": schema(40)}}]},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": schema(41)}}]},
        "tools.0.function.parameters",
        "",
    ),
    (
        "bytes of a regular expression",
        Route.COMPLETIONS,
        {"schema_bytes": 4},
        {"structured_outputs": {"regex": "éé"}},
        {"structured_outputs": {"regex": "ééx"}},
        "structured_outputs.regex",
        "",
    ),
    (
        "bytes of a grammar",
        Route.CHAT,
        {"schema_bytes": 4},
        {"structured_outputs": {"grammar": "xxxx"}},
        {"structured_outputs": {"grammar": "xxxxx"}},
        "structured_outputs.grammar",
        "",
    ),
    (
        "choices of a reply",
        Route.CHAT,
        {"token_ids": 2},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"choice": ["a", "b", "c"]}},
        "structured_outputs.choice",
        "",
    ),
    (
        "logit bias",
        Route.CHAT,
        {"logit_bias": 1},
        {"logit_bias": {"1": 1}},
        {"logit_bias": {"1": 1, "2": 1}},
        "logit_bias",
        "",
    ),
    (
        "token ids",
        Route.CHAT,
        {"token_ids": 2},
        {"stop_token_ids": [1, 2]},
        {"stop_token_ids": [1, 2, 3]},
        "stop_token_ids",
        "",
    ),
    ("bad words", Route.CHAT, {"token_ids": 2}, {"bad_words": ["a"] * 2}, {"bad_words": ["a"] * 3}, "bad_words", ""),
    ("allowed", Route.CHAT, {"token_ids": 1}, {"allowed_token_ids": [1]}, {"allowed_token_ids": [1, 2]}, "", ""),
]


@pytest.mark.parametrize(
    ("route", "changes", "at", "above", "param", "code"), [b[1:] for b in BOUNDS], ids=[b[0] for b in BOUNDS]
)
def test_each_limit_is_inclusive_and_names_its_field(  # noqa: PLR0917 - one row of the table
    route: Route, changes: dict[str, int], at: dict[str, Any], above: dict[str, Any], param: str, code: str
) -> None:
    """At it: accepted. One above: 400 with the field's name and a code."""
    limit = limited(**changes)
    check(route, limit, **at)
    with pytest.raises(InvalidRequest) as raised:
        check(route, limit, **above)
    assert raised.value.param == (param or next(iter(above)))
    assert raised.value.code == (code or "unsupported_value")


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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)


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


IDS = st.lists(st.integers(0, 10**6), max_size=30)


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


@pytest.mark.parametrize("value", [True, 1, 1.0, "1"])
def test_numbers_are_read_once_as_the_engine_reads_them(value: object) -> None:
    """What it would take for one is one from here on."""
    body, demand = check(Route.COMPLETIONS, n=value, max_tokens=value)
    assert (body["n"], body["max_tokens"]) == (1, 1)
    assert type(body["n"]) is int
    assert (demand.choices, demand.output_tokens) == (1, 1)


@pytest.mark.parametrize("value", [1.5, "x", "1" * 40, [1], {"a": 1}, 10**400, -(10**400), 1e300, "nan"])
@pytest.mark.parametrize("name", [name for name, spec in fields.CHAT.open.items() if isinstance(spec, Whole)])
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    """By the field's name, without the value."""
    with pytest.raises(InvalidRequest) as raised:
        check(Route.CHAT, **{name: value})
    assert raised.value.param == name
    assert len(raised.value.message) < 100


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
def test_null_is_as_if_it_were_not_sent(route: Route) -> None:
    """For every field that may be sent."""
    kept = {name: None for name in fields.ROUTES[route].open if name not in {"messages", "prompt"}}
    _, demand = check(route, **kept)
    assert demand == check(route)[1]


def test_a_chat_that_asks_for_no_number_is_bounded_by_the_default() -> None:
    """The field is left unset, so that the engine still knows that the context is the other bound."""
    body, demand = check(Route.CHAT, limited(default_output_tokens=77))
    assert demand.output_tokens == 77
    assert "max_tokens" not in body


def test_a_default_above_the_limit_is_the_limit() -> None:
    """A policy may lower one and not the other."""
    assert check(Route.CHAT, limited(default_output_tokens=77, output_tokens=5))[1].output_tokens == 5
    assert check(Route.COMPLETIONS, limited(output_tokens=5))[1].output_tokens == 5


@pytest.mark.parametrize(
    ("asked", "bound"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
    ],
)
def test_the_newer_name_of_the_bound_goes_first(asked: dict[str, Any], bound: int) -> None:
    """As in vLLM."""
    assert check(Route.CHAT, **asked)[1].output_tokens == bound


def test_a_completion_has_sixteen_tokens_or_one_for_a_score() -> None:
    """OpenAI's default; a prompt that is only scored costs the engine one token."""
    assert check(Route.COMPLETIONS)[1].output_tokens == 16
    assert check(Route.COMPLETIONS, echo=True, max_tokens=0)[1].output_tokens == 1


def test_a_demand_counts_every_sequence() -> None:
    """Prompts times choices."""
    _, demand = check(Route.COMPLETIONS, prompt=[[1, 2], [3]], n=3, max_tokens=5)
    assert (demand.prompts, demand.choices, demand.prompt_tokens, demand.sequences) == (2, 3, 3, 6)
    assert demand.tokens == 3 + 6 * 5


def test_prompt_tokens_are_estimated_from_bytes() -> None:
    """Four bytes a token, and some for each message."""
    assert check(Route.COMPLETIONS, prompt="x" * 401)[1].prompt_tokens == 101
    assert check(Route.COMPLETIONS, prompt="é" * 400)[1].prompt_tokens == 200
    _, demand = check(Route.CHAT, messages=says("x" * 396) * 2)
    assert demand.prompt_tokens == 2 * (100 + limits.MESSAGE_TOKENS)
    assert check(Route.CHAT, tools=[FUNCTION])[1].prompt_tokens > check(Route.CHAT)[1].prompt_tokens


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"tools": [FUNCTION]}, True),
        ({"tools": [FUNCTION], "tool_choice": "none"}, False),
        ({"tools": [FUNCTION], "tool_choice": "required"}, True),
    ],
)
def test_a_demand_says_whether_there_is_a_grammar(body: dict[str, Any], *, grammar: bool) -> None:
    """So that it is looked at before it reaches the engine."""
    assert check(Route.CHAT, **body)[1].grammar is grammar


def test_truncation_names_its_side() -> None:
    """Without one, vLLM tokenizes all of a text that it is about to cut."""
    assert check(Route.CHAT, truncate_prompt_tokens=5)[0]["truncation_side"] == "left"
    assert check(Route.CHAT, truncate_prompt_tokens=5, truncation_side="right")[0]["truncation_side"] == "right"
    assert "truncation_side" not in check(Route.CHAT)[0]


def test_best_of_is_n_or_nothing() -> None:
    """The engine has none; as many as are returned is no choice."""
    for body in ({"best_of": 2, "n": 2}, {"best_of": None, "n": 2}, {"best_of": 1}):
        assert "best_of" not in check(Route.COMPLETIONS, **body)[0]
    with pytest.raises(InvalidRequest):
        check(Route.COMPLETIONS, best_of=3, n=2)


def test_what_a_client_sends_back_of_a_reply_is_taken() -> None:
    """Assistants' messages come as they were received."""
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "x", "arguments": "{}"}}
    sent: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None}
    sent |= {"function_call": None, "reasoning": None, "tool_calls": [call]}
    body, _ = check(Route.CHAT, messages=[*says("x"), sent])
    kept = body["messages"][1]
    assert kept["tool_calls"][0]["function"] == call["function"]
    assert not {"annotations", "audio", "function_call"} & kept.keys()


def test_a_body_is_not_changed_in_place() -> None:
    """Who checks twice finds the same."""
    body = {"messages": says([{"type": "text", "text": "x", "cache_control": {}}]), "user": "x", "n": "1"}
    before = json.dumps(body)
    first = limits.check(Route.CHAT, body, DEFAULT, media_salt="a")
    assert json.dumps(body) == before
    assert first == limits.check(Route.CHAT, body, DEFAULT, media_salt="a")


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
