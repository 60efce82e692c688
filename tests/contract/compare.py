"""Compares two replies field by field and says where they differ, as paths.

What must differ between any two replies (ids, times, fingerprints) is replaced by a placeholder only if it has the
right shape, and numbered by first appearance: an id that changes in the middle of a stream still shows. It knows
nothing of the differences that are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tests.contract.exchange import DONE, Reply

LOGPROB_TOLERANCE = 1e-6
OLDEST_TIME = 1_600_000_000

IDS = {
    "chat.completion": re.compile(r"chatcmpl-[A-Za-z0-9._-]+"),
    "chat.completion.chunk": re.compile(r"chatcmpl-[A-Za-z0-9._-]+"),
    "text_completion": re.compile(r"cmpl-[A-Za-z0-9._-]+"),
    "model_permission": re.compile(r"modelperm-[A-Za-z0-9._-]+"),
}
TOOL_CALL_ID = re.compile(r"(chatcmpl-tool-|call_)[A-Za-z0-9._-]+")
ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Text:
    """A promise of text of some shape, where the text itself is not promised."""

    pattern: str

    def __repr__(self) -> str:
        """Show the shape as a regular expression."""
        return f"/{self.pattern}/"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two replies differ."""

    path: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        """Show the path and both values, cut short."""
        return f"{self.path}: {_short(self.expected)} != {_short(self.actual)}"


def differences(expected: Reply, actual: Reply) -> list[Difference]:
    """All fields in which `actual` is not what `expected` promises."""
    return list(_differences("", _tree(expected), _tree(actual)))


def differences_put_together(expected: Reply, actual: Reply) -> list[Difference]:
    """As `differences`, but with each answer's streamed parts joined: for streams cut at other places.

    The engine joins two tokens in one event when the reader is late, which is chance; all else still counts.
    """
    return list(_differences("", _tree(expected, put_together), _tree(actual, put_together)))


def cut_elsewhere(expected: Reply, actual: Reply) -> bool:
    """Whether both are streams and their events differ in number, so that one of them has joined tokens."""
    return bool(expected.events and actual.events) and len(expected.events) != len(actual.events)


def _tree(reply: Reply, arrange: Callable[[list[Any]], list[Any]] | None = None) -> dict[str, Any]:
    events = (arrange or by_answer)(reply.events)
    shown = Placeholders()
    return {
        "status": reply.status,
        "headers": reply.headers,
        "document": shown.replace_all(reply.document),
        "events": shown.replace_all(events),
        "stray": reply.stray,
    }


def by_answer(events: list[Any]) -> list[Any]:
    """Sort each run of events that carry one answer's part by the answer's index: how answers interleave is chance."""
    arranged: list[Any] = []
    for carries, run in groupby(events, lambda event: _index(event) is not None):
        events_in_run = list(run)
        arranged += sorted(events_in_run, key=lambda event: _index(event) or 0) if carries else events_in_run
    return arranged


def put_together(events: list[Any]) -> list[Any]:
    """Join the neighbouring parts of each answer; running counts of usage are dropped, the last one is kept."""
    joined: list[Any] = []
    for event in by_answer(events):
        index = _index(event)
        if index is not None and joined and _index(joined[-1]) == index:
            joined[-1] = _joined(joined[-1], event)
        else:
            joined.append(event)
    return joined


def _joined(first: Any, second: Any, key: str = "") -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        if key == "usage":
            return second
        return {name: _joined(first.get(name), second.get(name), name) for name in sorted({*first, *second})}
    if key in {"content", "text", "arguments"} and isinstance(first, str) and isinstance(second, str):
        return first + second
    if key in {"choices", "tool_calls"} and isinstance(first, list) and isinstance(second, list):
        return _joined_by_index(first, second)
    if isinstance(first, list) and isinstance(second, list):
        return first + second
    return first if second is None else second


def _joined_by_index(first: list[Any], second: list[Any]) -> list[Any]:
    parts = {part["index"]: part for part in first}
    for part in second:
        known = parts.get(part["index"])
        parts[part["index"]] = part if known is None else _joined(known, part)
    return [parts[index] for index in sorted(parts)]


def _index(event: Any) -> int | None:
    """The index of the one answer that an event carries a part of, if it does."""
    choices = event.get("choices") if isinstance(event, dict) else None
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0].get("index"), int):
        index: int = choices[0]["index"]
        return index
    return None


class Placeholders:
    """Replaces what is necessarily different within one reply, if it has the shape it must have."""

    def __init__(self) -> None:
        self._seen: dict[str, list[Any]] = {}

    def replace_all(self, value: Any) -> Any:
        """A copy of `value` with placeholders in it."""
        if isinstance(value, list):
            return [self.replace_all(item) for item in value]
        if isinstance(value, dict):
            return {key: self._replace(value, key) for key in value}
        return value

    def _replace(self, parent: dict[str, Any], key: str) -> Any:
        value, kind = parent[key], parent.get("object")
        if key == "created" and type(value) is int and value > OLDEST_TIME:
            return self._number("time", value)
        if key == "system_fingerprint" and isinstance(value, str) and value:
            return self._number("fingerprint", value)
        if key == "id" and isinstance(value, str):
            if isinstance(kind, str) and kind in IDS and IDS[kind].fullmatch(value):
                return self._number(f"{kind} id", value)
            if parent.get("type") == "function" and TOOL_CALL_ID.fullmatch(value):
                return self._number("tool call id", value)
        return self.replace_all(value)

    def _number(self, kind: str, value: Any) -> str:
        seen = self._seen.setdefault(kind, [])
        if value not in seen:
            seen.append(value)
        return f"<{kind} {seen.index(value) + 1}>"


def _differences(path: str, expected: Any, actual: Any) -> Iterator[Difference]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            here = f"{path}.{key}" if path else str(key)
            yield from _differences(here, expected.get(key, ABSENT), actual.get(key, ABSENT))
    elif isinstance(expected, list) and isinstance(actual, list):
        for place in range(max(len(expected), len(actual))):
            left = expected[place] if place < len(expected) else ABSENT
            right = actual[place] if place < len(actual) else ABSENT
            yield from _differences(f"{path}[{place}]", left, right)
    elif not _same(expected, actual):
        yield Difference(path, expected, actual)


def _same(expected: Any, actual: Any) -> bool:
    if isinstance(expected, Text):
        return isinstance(actual, str) and re.fullmatch(expected.pattern, actual, re.DOTALL) is not None
    if isinstance(expected, float) and isinstance(actual, float):
        return abs(expected - actual) <= LOGPROB_TOLERANCE * max(1.0, abs(expected))
    return type(expected) is type(actual) and bool(expected == actual)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 300 else f"{shown[:300]}…"


def ends_as_a_stream_must(reply: Reply) -> bool:
    """Whether a stream ends in exactly one of: `[DONE]`, or an error and no `[DONE]`."""
    if not reply.events:
        return True
    errors = [place for place, event in enumerate(reply.events) if isinstance(event, dict) and "error" in event]
    last = len(reply.events) - 1
    dones = [place for place, event in enumerate(reply.events) if event == DONE]
    return (dones == [last] and not errors) or (errors == [last] and not dones)
