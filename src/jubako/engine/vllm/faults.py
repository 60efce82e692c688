"""vLLM's errors as refusals: the one adapter between its exception types, its error bodies and our contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.exception_handling.handlers.validation import clean_loc_for_param
from vllm.exceptions import GracefulHTTPError, RetryableRequestError, VLLMError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from jubako.errors import InternalError, InvalidRequest, NotFound, Refusal, Unavailable

_INTERNAL = "The server had an internal error."
_ENGINE = "The engine is not available. The request was not completed."
_MESSAGE_CHARACTERS = 1000
_STATUS_NOT_FOUND = 404
_STATUS_SERVER = 500
_STATUS_UNAVAILABLE = 503
_STATUS_NOT_IMPLEMENTED = 501


def from_exception(error: Exception) -> Refusal:
    """The refusal for an error that vLLM raised while it rendered or generated."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, EngineDeadError):
        return Unavailable(_ENGINE, code="engine_unavailable")
    if isinstance(error, (RetryableRequestError, GracefulHTTPError)):
        return Unavailable("The engine cannot take the request now.", code="engine_unavailable")
    if isinstance(error, ValidationError):
        return from_validation(error)
    if isinstance(error, VLLMValidationError):
        # str() of it would add the value, which may be the caller's text.
        return _invalid(Exception.__str__(error), error.parameter)
    return _from_vllm(error) if isinstance(error, VLLMError) else _from_raw(error)


def _from_vllm(error: Exception) -> Refusal:
    return from_body(create_error_response(error).model_dump()["error"])


def _from_raw(error: Exception) -> Refusal:
    """The refusal for an exception that is nobody's own kind.

    vLLM checks much of a request by letting Python fail, so what it raises of these kinds is the caller's fault; the
    same kinds out of our code are ours. Where it was raised tells them apart.
    """
    if not _raised_by_vllm(error):
        return InternalError(_INTERNAL)
    if isinstance(error, (TypeError, OverflowError, UnicodeError, KeyError, AttributeError, RecursionError)):
        # Its message is about Python, not about the request.
        return InvalidRequest("A field of the request has a wrong type, a wrong shape or a value out of range.")
    return _from_vllm(error)


def _raised_by_vllm(error: Exception) -> bool:
    """Whether the innermost frame that is vLLM's or ours is vLLM's."""
    trace, by_vllm = error.__traceback__, False
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in {"vllm", "jubako"}:
            by_vllm = package == "vllm"
        trace = trace.tb_next
    return by_vllm


def from_body(body: Mapping[str, Any]) -> Refusal:
    """The refusal for an error object that a serving object returned or streamed."""
    status = int(body.get("code") or _STATUS_SERVER)
    message, param = str(body.get("message") or ""), body.get("param")
    if status == _STATUS_UNAVAILABLE:
        return Unavailable("The engine cannot take the request now.", code="engine_unavailable")
    if status == _STATUS_NOT_IMPLEMENTED:
        return InvalidRequest(message, code="unsupported_value", param=param)
    if status >= _STATUS_SERVER:
        return InternalError(_INTERNAL)
    if status == _STATUS_NOT_FOUND:
        return NotFound(message, code="model_not_found", param=param)
    return _invalid(message, param)


def from_validation(error: ValidationError) -> InvalidRequest:
    """The refusal for a request whose fields have wrong types or ranges; the values are not repeated."""
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    param = clean_loc_for_param(tuple(first["loc"])) if first["loc"] else None
    if isinstance(cause, VLLMValidationError):
        return _invalid(Exception.__str__(cause), cause.parameter or param)
    code = "missing_field" if first["type"] == "missing" else "invalid_value"
    where = f"{param}: " if param else ""
    return InvalidRequest(f"{where}{first['msg']}", code=code, param=param)


def _invalid(message: str, param: str | None) -> InvalidRequest:
    message = message.strip()
    if len(message) > _MESSAGE_CHARACTERS:
        # Some of vLLM's quote the whole field.
        message = message[:_MESSAGE_CHARACTERS] + "…"
    too_long = "maximum context length" in message or "max_model_len" in message or "maximum model length" in message
    code = "context_length_exceeded" if too_long else "invalid_value"
    return InvalidRequest(message, code=code, param=param)
