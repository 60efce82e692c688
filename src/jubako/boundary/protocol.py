"""From a request body to a JSON object: content type, text, nesting and size, before and while it is parsed.

Knows JSON, and of the fields only `stream`, which decides the kind of the reply. What fields mean is for `fields` and
`limits`.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from jubako.errors import InvalidRequest, UnsupportedMediaType
from jubako.vocabulary import Limits

_BOOLEAN = TypeAdapter(bool)
_SPACE = b" \t\r\n"
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")
_DIGITS = b"0123456789"
_FLAT = re.compile(rb"\[,+\]")


class _Twice(ValueError):
    """One key stands twice in one object."""


def parse(body: bytes, content_type: str | None, limits: Limits) -> dict[str, Any]:
    """The body as a JSON object within the limits; raises `InvalidRequest` or `UnsupportedMediaType`."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType("The request body must be JSON: send 'Content-Type: application/json'.")
    require_bounded(body, limits)
    try:
        # Decoded here, because json.loads lets bytes through that are no text: encoded halves of surrogate pairs.
        document = json.loads(
            body.decode(), parse_constant=_not_json, parse_float=_finite, object_pairs_hook=_without_duplicates
        )
    except _Twice:
        raise _invalid("The request body has one key twice in one object.") from None
    except (ValueError, RecursionError) as error:
        # Position only: the text around it is the caller's.
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise _invalid(f"The request body is not valid JSON{where}.") from None
    if not isinstance(document, dict):
        raise _invalid("The request body must be a JSON object.")
    if b"\\u" in body:
        _refuse_lone_surrogates(document)
    _settle_stream(document)
    return document


def require_bounded(body: bytes, limits: Limits) -> None:
    """Refuse bodies that are nested too deep or hold too many values, in time linear in bytes and without parsing.

    Counting bytes first is enough for most bodies; only where that bound is too high are strings cut out and the rest
    looked at. What is no JSON may pass: the parser refuses it then. Of the token ids in the body, as many as one prompt
    may have count for nothing here: they are bounded by `prompt_tokens`, and cost little beside other values.
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= limits.json_depth and opened + body.count(b",") <= limits.json_values:
        return
    bare = _without_strings(body, limits)
    opened = bare.count(b"[") + bare.count(b"{")
    if opened > limits.json_depth:
        _require_depth(bare, limits)
    # Each container with k items has k - 1 commas; a container without items adds nothing.
    values = bare.count(b",") + opened - bare.count(b"[]") - bare.count(b"{}")
    if opened - 1 <= limits.json_values < values:
        values -= min(_token_ids(bare), limits.prompt_tokens)
    if max(values, opened - 1) > limits.json_values:
        raise _too_many_values(limits)


def _token_ids(bare: bytes) -> int:
    """Items of lists that hold whole numbers and nothing else, but for lists of one: what a prompt of token ids is.

    Wherever they stand; `limits` bounds them there. Without its digits such a list is brackets around commas.
    """
    return sum(len(flat) - 1 for flat in _FLAT.findall(bare.translate(None, _DIGITS)))


def _without_strings(body: bytes, limits: Limits) -> bytes:
    """`body` with nothing in its strings and no space between its tokens."""
    if b"\\" in body:
        # Pairs first: what is left of a run of backslashes escapes the character behind it.
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Each value is at most one string, and each key is one beside its value.
    if body.count(b'"') > 4 * (limits.json_values + 1):
        raise _too_many_values(limits)
    return b'"'.join(body.split(b'"')[::2]).translate(None, _SPACE)


def _require_depth(bare: bytes, limits: Limits) -> None:
    depth = 0
    # More brackets than this are too many values as well, whatever their order.
    for byte in bare.translate(None, _NO_BRACKETS)[: 2 * limits.json_values + 4]:
        depth += 1 if byte in _OPENING else -1
        if depth > limits.json_depth:
            raise _invalid(f"The request body is nested deeper than {limits.json_depth} levels.")


def _too_many_values(limits: Limits) -> InvalidRequest:
    return _invalid(f"The request body holds more than {limits.json_values} keys and items.")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_json")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two parsers may take different ones of two: what one checked, the other would never see."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Twice
    return found


def _settle_stream(document: dict[str, Any]) -> None:
    """Read `stream` as the engine's own validation does (`1` and `"true"` are true), once, so that both agree."""
    if "stream" in document and document["stream"] is not None:
        try:
            document["stream"] = _BOOLEAN.validate_python(document["stream"])
        except ValidationError:
            raise InvalidRequest("stream: Input should be a valid boolean", param="stream") from None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)


def _finite(text: str) -> float:
    """A number too large for a float is infinity to Python, which is no JSON either."""
    number = float(text)
    return number if math.isfinite(number) else _not_json(text)


def _refuse_lone_surrogates(document: dict[str, Any]) -> None:
    """Half a surrogate pair is valid JSON but not text: it can be neither tokenized nor sent back."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise _invalid("The request body holds an unpaired surrogate escape.") from None
