"""From a request body to a `Call`'s fields: JSON, content type, fields that no caller may set.

Knows nothing of what the fields mean to the model: types and ranges are the engine's to check.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from jubako.errors import InvalidRequest, UnsupportedMediaType

PRIVILEGED_FIELDS = frozenset(
    {
        # Each of these lets a caller reach past the boundary: another's cache, the scheduler, the engine's own ids,
        # a prompt other than the one that was checked, code in templates, files on the server.
        "cache_salt",
        "chat_template",
        "data_parallel_rank",
        "kv_transfer_params",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "priority",
        "request_id",
        "session_id",
        "vllm_xargs",
    }
)
_BOOLEAN = TypeAdapter(bool)


def parse(body: bytes, content_type: str | None) -> dict[str, Any]:
    """The body as a JSON object without privileged fields; raises `InvalidRequest` or `UnsupportedMediaType`."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType("The request body must be JSON: send 'Content-Type: application/json'.")
    try:
        # Decoded here, because json.loads lets bytes through that are no text: encoded halves of surrogate pairs.
        document = json.loads(body.decode(), parse_constant=_not_json, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        # Position only: the text around it is the caller's.
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest(f"The request body is not valid JSON{where}.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    if b"\\u" in body:
        _refuse_lone_surrogates(document)
    _settle_stream(document)
    refused = sorted(PRIVILEGED_FIELDS & document.keys())
    if refused:
        raise InvalidRequest(
            f"This field is set by the server and cannot be sent: {refused[0]}.", code="unknown_field", param=refused[0]
        )
    return document


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
        raise InvalidRequest("The request body holds an unpaired surrogate escape.", code="invalid_json") from None
