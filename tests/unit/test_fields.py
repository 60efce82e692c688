"""Which fields may be sent: every one is decided on, and those that reach past the boundary stay closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jubako.boundary import fields
from jubako.boundary.fields import Table, sift
from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.hostile import PRIVILEGED

NEVER_OPEN = (
    *("cache_salt", "data_parallel_rank", "ec_transfer_params", "kv_transfer_params", "media_io_kwargs", "mm_payload"),
    *("mm_processor_kwargs", "priority", "prompt_embeds", "request_id", "return_mm_kwargs", "return_token_offsets"),
    *("routed_experts_prompt_start", "session_id", "stream_interval", "use_beam_search", "vllm_xargs", "watermarking"),
    *("chat_template", "logprob_token_ids"),
)
"""Written out once more: who takes one of them out of a table must take it out of here too."""
VLLM_FIELDS = """
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
print("fields", *ChatCompletionRequest.model_fields)
print("fields", *CompletionRequest.model_fields)
"""
TABLES = {name: value for name, value in vars(fields).items() if isinstance(value, Table)} | {
    f"TEXT_PARTS {kind}": table for kind, table in fields.TEXT_PARTS.items()
}


@pytest.mark.timeout(180)
def test_every_field_of_the_engine_is_decided_on() -> None:
    """A new field of a new vLLM fails here until someone has looked at it; in a process of its own, as vLLM stays."""
    found = subprocess.run([sys.executable, "-c", VLLM_FIELDS], capture_output=True, text=True, check=True)
    lines = [line.split()[1:] for line in found.stdout.splitlines() if line.startswith("fields ")]
    for table, names in zip((fields.CHAT, fields.COMPLETIONS), lines, strict=True):
        decided = table.open.keys() | table.ignored.keys() | table.privileged
        assert set(names) - decided == set()
        # What vLLM does not know is not sent to it.
        assert table.open.keys() - set(names) == set()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_no_field_is_in_two_tables(name: str) -> None:
    """One decision for each."""
    table = TABLES[name]
    assert not table.open.keys() & table.ignored.keys()
    assert not table.open.keys() & table.privileged
    assert not table.ignored.keys() & table.privileged


@pytest.mark.parametrize("route", list(fields.ROUTES))
@pytest.mark.parametrize("name", NEVER_OPEN)
def test_what_reaches_past_the_boundary_is_never_sent_on(route: Route, name: str) -> None:
    """Whatever the tables say today."""
    for value in (None, 1, "x", {"a": 1}, True):
        try:
            kept = sift(fields.ROUTES[route], {name: value})
        except InvalidRequest as refused:
            assert refused.param == name  # noqa: PT017 - dropped is as good as refused
        else:
            assert name not in kept


@pytest.mark.parametrize("name", sorted(PRIVILEGED))
@pytest.mark.parametrize("value", [None, "x"])
def test_privileged_fields_are_refused_by_name(name: str, value: object) -> None:
    """Whatever the value, null included."""
    with pytest.raises(InvalidRequest, match=f"set by the server and cannot be sent: {name}") as raised:
        sift(fields.CHAT, {name: value})
    assert (raised.value.code, raised.value.param) == ("unknown_field", name)


def test_an_unknown_field_is_refused_with_the_nearest_known_one() -> None:
    """A typing error is found at once, not after a day of wrong replies."""
    with pytest.raises(InvalidRequest, match=r"Unknown field: temprature\. Did you mean temperature\?") as raised:
        sift(fields.CHAT, {"temprature": 1})
    assert (raised.value.code, raised.value.param) == ("unknown_field", "temprature")


@pytest.mark.parametrize("name", ["x" * 65, "a b", "", "a\nb", "\u0441ache_salt"])
def test_what_is_no_name_is_not_repeated(name: str) -> None:
    """An error is no mirror."""
    with pytest.raises(InvalidRequest) as raised:
        sift(fields.MESSAGE, {name: 1}, "messages.0.")
    assert raised.value.param == "messages.0"
    assert not name or name not in raised.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "x"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("store", None),
        ("service_tier", "auto"),
        ("service_tier", "default"),
        ("safety_identifier", "x"),
        ("prompt_cache_key", "x"),
        ("use_beam_search", False),
    ],
)
@pytest.mark.parametrize("route", list(fields.ROUTES))
def test_fields_without_effect_are_dropped(route: Route, name: str, value: object) -> None:
    """They may be sent, and the engine never sees them."""
    assert sift(fields.ROUTES[route], {name: value, "seed": 1}) == {"seed": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [("store", True), ("service_tier", "flex"), ("use_beam_search", True), ("use_beam_search", "true")],
)
def test_values_that_would_have_an_effect_are_refused(name: str, value: object) -> None:
    """Nobody is told that something was done that was not."""
    with pytest.raises(InvalidRequest) as raised:
        sift(fields.COMPLETIONS, {name: value})
    assert (raised.value.code, raised.value.param) == ("unsupported_value", name)
