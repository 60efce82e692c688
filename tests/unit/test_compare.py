"""The comparison of two replies can fail, and says where."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.compare import (
    Text,
    cut_elsewhere,
    differences,
    differences_put_together,
    ends_as_a_stream_must,
)
from tests.contract.exchange import DONE, Reply, parse_events


def whole(**fields: Any) -> Reply:
    """A chat reply with these fields."""
    document = {"id": "chatcmpl-1a", "object": "chat.completion", "created": 1_700_000_000} | fields
    return Reply(200, {"content-type": "application/json"}, document=document)


def part(content: str, *, index: int = 0, id: str = "chatcmpl-1", **fields: Any) -> dict[str, Any]:  # noqa: A002
    """One event of a chat stream."""
    choice = {"index": index, "delta": {"content": content}, "finish_reason": None} | fields
    return {"id": id, "object": "chat.completion.chunk", "created": 1_700_000_000, "choices": [choice]}


def stream(*events: Any) -> Reply:
    """A stream of these events and `[DONE]`."""
    return Reply(200, {"content-type": "text/event-stream"}, events=[*events, DONE])


def paths(expected: Reply, actual: Reply) -> list[str]:
    """The differences as they are printed."""
    return [str(difference) for difference in differences(expected, actual)]


def test_equal_replies_do_not_differ() -> None:
    """Two equal replies give no difference."""
    assert paths(whole(choices=[1, 2.0, None]), whole(choices=[1, 2.0, None])) == []


def test_difference_is_told_as_a_path() -> None:
    """A difference is a path and both values."""
    left, right = (whole(choices=[{"message": {"content": text}}]) for text in "ab")
    assert paths(left, right) == ["document.choices[0].message.content: 'a' != 'b'"]


@pytest.mark.parametrize(
    ("left", "right", "path"),
    [
        ({"a": 1}, {}, "document.a: 1 != '(absent)'"),
        ({}, {"a": None}, "document.a: '(absent)' != None"),
        ({"a": [1]}, {"a": [1, 2]}, "document.a[1]: '(absent)' != 2"),
        ({"a": 1}, {"a": True}, "document.a: 1 != True"),
        ({"a": 1}, {"a": 1.0}, "document.a: 1 != 1.0"),
        ({"a": None}, {"a": ""}, "document.a: None != ''"),
        ({"a": {}}, {"a": []}, "document.a: {} != []"),
        ({"a": -1.5}, {"a": -1.50001}, "document.a: -1.5 != -1.50001"),
    ],
)
def test_every_kind_of_difference_shows(left: dict[str, Any], right: dict[str, Any], path: str) -> None:
    """Absent, longer, of another type or another number: each shows."""
    assert paths(whole(**left), whole(**right)) == [path]


def test_status_headers_and_stray_lines_are_compared() -> None:
    """What is not in the body is compared as well."""
    left, right = Reply(200, {}, stray=[]), Reply(201, {"allow": "GET"}, stray=["id: 1"])
    assert [difference.path for difference in differences(left, right)] == ["status", "headers.allow", "stray[0]"]


def test_ids_times_and_fingerprints_may_differ() -> None:
    """Two servers do not make the same ids."""
    left = whole(system_fingerprint="vllm-1")
    right = whole(id="chatcmpl-ours", created=1_800_000_000, system_fingerprint="jubako-2")
    assert paths(left, right) == []


@pytest.mark.parametrize(
    "wrong",
    [{"id": "cmpl-1"}, {"id": ""}, {"id": None}, {"created": "now"}, {"created": 5}, {"system_fingerprint": None}],
)
def test_ids_times_and_fingerprints_need_their_shape(wrong: dict[str, Any]) -> None:
    """An id that is absent or of a wrong shape shows."""
    assert len(paths(whole(system_fingerprint="vllm-1"), whole(**({"system_fingerprint": "j-1"} | wrong)))) == 1


def test_tool_call_ids_may_differ_in_value_alone() -> None:
    """The ids of tool calls need their shape too."""

    def calls(id: str) -> Reply:  # noqa: A002
        return whole(tool_calls=[{"id": id, "type": "function"}])

    assert paths(calls("chatcmpl-tool-1"), calls("call_2")) == []
    assert len(paths(calls("chatcmpl-tool-1"), calls("1"))) == 1


def test_an_id_that_changes_in_the_stream_shows() -> None:
    """All events of a stream carry one id."""
    left = stream(part("a", id="chatcmpl-1"), part("b", id="chatcmpl-1"))
    right = stream(part("a", id="chatcmpl-1"), part("b", id="chatcmpl-2"))
    assert [difference.path for difference in differences(left, right)] == ["events[1].id"]


def test_interleaving_of_answers_is_chance_but_their_order_is_not() -> None:
    """Parts of one answer stay in order; parts of two may mix."""
    left = stream(part("a"), part("x", index=1), part("b"), part("y", index=1))
    assert paths(left, stream(part("a"), part("b"), part("x", index=1), part("y", index=1))) == []
    assert paths(left, stream(part("b"), part("a"), part("x", index=1), part("y", index=1))) != []


def test_usage_before_the_last_part_shows() -> None:
    """Events without an answer keep their place."""
    usage = {"object": "chat.completion.chunk", "choices": [], "usage": {"total_tokens": 2}}
    assert paths(stream(part("a"), part("b"), usage), stream(part("a"), usage, part("b"))) != []


def test_a_stream_cut_elsewhere_is_equal_when_put_together() -> None:
    """Joined tokens give the same answer."""
    left = stream(part("a", logprobs={"content": [1]}), part("b", logprobs={"content": [2]}, finish_reason="stop"))
    right = stream(part("ab", logprobs={"content": [1, 2]}, finish_reason="stop"))
    assert cut_elsewhere(left, right)
    assert paths(left, right) != []
    assert differences_put_together(left, right) == []


@pytest.mark.parametrize(
    "right",
    [
        stream(part("ac", finish_reason="stop")),
        stream(part("ab", finish_reason="length")),
        stream(part("ab")),
        Reply(200, {"content-type": "text/event-stream"}, events=[part("ab", finish_reason="stop")]),
    ],
)
def test_a_stream_cut_elsewhere_still_differs_in_all_else(right: Reply) -> None:
    """Text, reason and end are compared after joining."""
    assert differences_put_together(stream(part("a"), part("b", finish_reason="stop")), right) != []


def test_arguments_of_tools_are_put_together() -> None:
    """The parts of a tool call are joined by its index."""

    def call(arguments: str) -> dict[str, Any]:
        return part("") | {
            "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}}]
        }

    assert differences_put_together(stream(call("{"), call("}")), stream(call("{}"))) == []
    assert differences_put_together(stream(call("{"), call("}")), stream(call("{"))) != []


def test_text_of_a_shape_is_promised() -> None:
    """A shape takes the place of text that is not promised."""
    assert paths(whole(message=Text("The .*")), whole(message="The end.")) == []
    assert paths(whole(message=Text("The .*")), whole(message="An end.")) == ["document.message: /The .*/ != 'An end.'"]
    assert paths(whole(message=Text(".*")), whole(message=None)) != []


@pytest.mark.parametrize(
    ("events", "well"),
    [
        ([DONE], True),
        ([{"error": {}}], True),
        ([{"error": {}}, DONE], False),
        ([{"a": 1}], False),
        ([DONE, DONE], False),
        ([DONE, {"a": 1}], False),
    ],
)
def test_how_a_stream_must_end(events: list[Any], *, well: bool) -> None:
    """`[DONE]` or an error, never both, and nothing after it."""
    assert ends_as_a_stream_must(Reply(200, {}, events=events)) is well


def test_events_are_read_and_stray_lines_kept() -> None:
    """Comments are skipped; what no client should see is kept."""
    text = ': keep-alive\n\ndata: {"a": 1}\n\nid: 7\ndata: {"b":\ndata: 2}\n\ndata: [DONE]\n\n'
    assert parse_events(text) == ([{"a": 1}, {"b": 2}, DONE], ["id: 7"])
