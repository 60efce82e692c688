"""Log lines: one format for everything that this process and the engine's write, and what must never be in them.

Owns the handler on standard error, the request id of each line, and what is led to that handler: libraries' loggers,
the engine's, and what Python says by itself. What may be in a line is said in `content`, and how it is written without
waiting for its reader in `sink`. Knows nothing of who logs, and imports nothing of Jubako's but records: the engine's
process imports it too.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from jubako.telemetry.content import WithoutContent, ours, place
from jubako.telemetry.sink import StandardErrorHandler
from jubako.vocabulary import Account

if TYPE_CHECKING:
    from jubako.sections import LogSettings

__all__ = [
    "FORMAT_VARIABLE",
    "Format",
    "JsonLines",
    "TextLines",
    "WithoutContent",
    "adopt",
    "chosen_format",
    "configure",
    "engine_environment",
    "engine_handler",
    "keep_content_out",
    "place",
    "request",
    "request_ended",
]

Format = Literal["json", "text"]

FORMAT_VARIABLE = "JUBAKO_LOG_FORMAT"
"""Set for the engine's process, which has no settings. Not a setting."""
_ENGINE_CONFIGURATION = Path(__file__).with_name("engine_logging.json")
_SILENT = ("uvicorn.access", "bentoml.access")
"""A line a request is ours to write; theirs would name paths as they came."""
_SERVER_LEVELS = {"": "WARNING", "bentoml": "WARNING", "uvicorn": "WARNING", "circus": "WARNING"}

_request_id: ContextVar[str] = ContextVar("jubako_request_id", default="")
_ours = logging.getLogger("jubako")
_requests = logging.getLogger("jubako.requests")
_json_lines: StandardErrorHandler | None = None
"""The root's handler in the server's process, if its lines are JSON."""
_python = logging.getLogger("jubako.python")
"""What the interpreter would say on standard error by itself."""


@contextmanager
def request(request_id: str) -> Iterator[None]:
    """Put `request_id` on every line that is written inside, by whomever, in this task and those it starts."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def request_ended(account: Account, trace_id: str = "") -> None:
    """The one line of a request. Never content: names that an operator configured, and numbers."""
    if not _requests.isEnabledFor(logging.INFO):
        return
    usage = account.usage
    fields: dict[str, object] = {
        "request_id": account.request_id,
        "tenant": account.tenant,
        "key_id": account.key_id,
        "route": account.route,
        "alias": account.alias,
        "stream": account.stream,
        "status": account.status,
        "outcome": account.outcome.value,
        "code": account.code,
        "priority": account.priority,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "queue_seconds": round(account.queue_seconds, 6),
        "first_token_seconds": round(account.first_token_seconds, 6),
        "seconds": round(account.total_seconds, 6),
    }
    if trace_id:
        fields["trace_id"] = trace_id
    message = (
        f"request={account.request_id} route={account.route} status={account.status} outcome={account.outcome.value}"
        f" code={account.code or '-'} seconds={account.total_seconds:.3f} tenant={account.tenant or '-'}"
        f" alias={account.alias or '-'} prompt={usage.prompt_tokens} generated={usage.generated_tokens}"
    )
    reader = _only_reader()
    if reader is None:
        _requests.info("%s", message, extra={"fields": fields})
    else:
        now = time.time()
        reader.say(_encode(_head(now, int(now % 1 * 1000), "info", _requests.name, message) | fields))


def _only_reader() -> StandardErrorHandler | None:
    """The handler of lines in JSON, if nobody else wants the requests' lines.

    Then such a line is written without a record: logging's way to a handler takes longer than all that the line says.
    """
    own = _json_lines
    if own is None or logging.root.handlers != [own] or _requests.handlers or _ours.handlers:
        return None
    return own


def configure(settings: LogSettings) -> None:
    """Write every logger's lines to standard error in one format, once however often this is called."""
    root = logging.getLogger()
    global _json_lines  # noqa: PLW0603 - there is one standard error
    chosen = chosen_format(settings)
    for handler in [one for one in root.handlers if one.get_name() == __name__ or _on_a_standard_stream(one)]:
        root.removeHandler(handler)
    own = _handler(chosen, WithoutContent())
    root.addHandler(own)
    _json_lines = own if chosen == "json" and multiprocessing.parent_process() is None else None
    for name, level in _SERVER_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("jubako").setLevel(settings.level.upper())
    for name in _SILENT:
        logging.getLogger(name).disabled = True
    adopt()
    _take_what_python_says()


def adopt() -> None:
    """Take the handlers off every logger that writes to a standard stream of its own; the root's has its lines.

    Libraries bring such handlers when they are imported, so this is to be called again after the engine's start.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if not isinstance(logger, logging.Logger) or name in _SILENT:
            continue
        # A library that sets up logging turns off every logger that it does not know.
        logger.disabled = False
        own = [one for one in logger.handlers if _on_a_standard_stream(one)]
        for handler in own:
            logger.removeHandler(handler)
        if own or (name in _SERVER_LEVELS and not logger.handlers):
            logger.propagate = True


def keep_content_out(name: str) -> None:
    """From now on apply `WithoutContent` to the loggers below `name`, and to every library that came meanwhile."""
    for handler in logging.getLogger(name).handlers:
        if not any(isinstance(one, WithoutContent) for one in handler.filters):
            handler.addFilter(WithoutContent())
    adopt()
    _take_what_python_says()


def chosen_format(settings: LogSettings) -> Format:
    """What `auto` means here and now."""
    if settings.format == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return settings.format


def engine_environment(settings: LogSettings) -> dict[str, str]:
    """The variables that make vLLM log in this format, here and in its own processes; to be set before its import."""
    return {"VLLM_LOGGING_CONFIG_PATH": str(_ENGINE_CONFIGURATION), FORMAT_VARIABLE: chosen_format(settings)}


def engine_handler() -> logging.Handler:
    """The handler that vLLM installs, named in `engine_logging.json`.

    In the engine's process nobody says when the start is over, so it keeps content out from the beginning.
    """
    chosen: Format = "text" if os.environ.get(FORMAT_VARIABLE) == "text" else "json"
    if multiprocessing.parent_process() is None:
        return _handler(chosen, None)
    # Python prints the traceback of what ended a process, past all logging, and its last line may quote a request.
    traceback.print_exc = _last_words
    handler = _handler(chosen, WithoutContent(engine_process=True))
    _python.handlers[:] = [handler]
    _take_what_python_says()
    return handler


def _last_words(*_: object, **__: object) -> None:
    error = sys.exception()
    if error is not None:
        logging.getLogger("vllm.process").error("%s", place(error))


def _take_what_python_says() -> None:
    """Warnings and errors that nobody catches go past logging to standard error, and may quote a request."""
    warnings.showwarning = _warned
    sys.unraisablehook = _dropped
    threading.excepthook = _thread_ended


def _warned(  # noqa: PLR0917 - the standard library's signature
    message: Warning | str,  # noqa: ARG001 - it is what may quote a request
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    _python.warning("%s at %s:%d", category.__name__, filename.rsplit("/", 1)[-1], lineno)


def _dropped(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_value is not None:
        _python.error("an error nobody could catch: %s", place(unraisable.exc_value))


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        _python.error("a thread ended: %s", place(ended.exc_value))


def _handler(chosen: Format, content: logging.Filter | None) -> StandardErrorHandler:
    handler = StandardErrorHandler(JsonLines() if chosen == "json" else TextLines())
    handler.set_name(__name__)
    if content is not None:
        handler.addFilter(content)
    return handler


def _on_a_standard_stream(handler: logging.Handler) -> bool:
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and any(handler.stream is one for one in streams)


_encode = json.JSONEncoder(ensure_ascii=False, default=str, separators=(",", ":")).encode
"""Made once: `json.dumps` makes an encoder for each line that is not in its default form."""


def _head(unix_seconds: float, milliseconds: int, level: str, name: str, message: str) -> dict[str, Any]:
    """What every line begins with."""
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(unix_seconds))}.{milliseconds:03d}Z"
    return {"time": at, "level": level, "logger": name, "message": message}


class JsonLines(logging.Formatter):
    """One JSON object a line: time in UTC, level, logger, message, and what else the record has."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; newlines inside are escaped by JSON."""
        level, message = record.levelname.lower(), record.getMessage()
        line = _head(record.created, int(record.msecs), level, record.name, message)
        if request_id := _request_id.get():
            line["request_id"] = request_id
        if process := _process(record):
            line["process"] = process
        line |= _fields(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return _encode(line)


class TextLines(logging.Formatter):
    """For a terminal. A message of several lines is indented, so that none of them looks like a line of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s%(whence)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, with request id and process where there are any."""
        parts = (_process(record), "" if _fields(record) else _request_id.get())
        whence = "".join(f" [{part}]" for part in parts if part)
        record.whence = whence
        return super().format(record).replace("\n", "\n    ")


def _process(record: logging.LogRecord) -> str:
    """vLLM's name of the process, or Python's; nothing for the server itself."""
    name = str(getattr(record, "vllm_process_name", None) or record.processName or "")
    return "" if name == "MainProcess" else name


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) and ours(record.name) else {}
