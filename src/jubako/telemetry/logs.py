"""Log lines: one format for everything that this process and the engine's write, and what must never be in them.

Owns the handler on standard error, the request id of each line, and the filter that keeps content out. Knows nothing
of who logs, and imports nothing of Jubako's but records: the engine's process imports it too.

Three kinds of writers, three degrees of trust:

- Jubako's own lines are written with care and kept, without tracebacks: the last line of one quotes a value.
- Libraries' lines keep their sentence. Values are left out unless they are numbers, tracebacks become places, and
  nothing below INFO passes: those lines quote requests as a matter of course.
- The engine's lines are kept whole until it serves, because a failed start must be understood. In the engine's own
  process, where nobody says when that is, it is what its loggers of files and memory say, and why a start failed.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jubako.vocabulary import Account

if TYPE_CHECKING:
    from jubako.sections import LogSettings

Format = Literal["json", "text"]

FORMAT_VARIABLE = "JUBAKO_LOG_FORMAT"
"""Set for the engine's process, which has no settings. Not a setting."""
_ENGINE_CONFIGURATION = Path(__file__).with_name("engine_logging.json")
_SILENT = ("uvicorn.access", "bentoml.access")
"""A line a request is ours to write; theirs would name paths as they came."""
_SERVER_LEVELS = {"": "WARNING", "bentoml": "WARNING", "uvicorn": "WARNING", "circus": "WARNING"}
_ENGINE_STARTS = (
    "vllm.v1.core.kv_cache_utils",
    "vllm.model_executor.model_loader",
    "vllm.platforms",
    "vllm.distributed.parallel_state",
)
"""Loggers of the engine's process that see files, memory and devices, and no request."""
_ENGINE_FAILS = frozenset({"EngineCore failed to start.", "WorkerProc failed to start."})
"""What the engine's process says when it never served: the traceback is what the operator needs."""

_request_id: ContextVar[str] = ContextVar("jubako_request_id", default="")
_requests = logging.getLogger("jubako.requests")


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
    _requests.info(
        "request=%s route=%s status=%d outcome=%s code=%s seconds=%.3f tenant=%s alias=%s prompt=%d generated=%d",
        account.request_id,
        account.route,
        account.status,
        account.outcome.value,
        account.code or "-",
        account.total_seconds,
        account.tenant or "-",
        account.alias or "-",
        usage.prompt_tokens,
        usage.generated_tokens,
        extra={"fields": fields},
    )


def configure(settings: LogSettings) -> None:
    """Write every logger's lines to standard error in one format, once however often this is called."""
    root = logging.getLogger()
    chosen = chosen_format(settings)
    for handler in [one for one in root.handlers if one.get_name() == __name__ or _on_a_standard_stream(one)]:
        root.removeHandler(handler)
    root.addHandler(_handler(chosen, WithoutContent()))
    for name, level in _SERVER_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("jubako").setLevel(settings.level.upper())
    for name in _SILENT:
        logging.getLogger(name).disabled = True
    adopt()


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
    return _handler(chosen, WithoutContent(engine_process=True))


def _last_words(*_: object, **__: object) -> None:
    error = sys.exception()
    if error is not None:
        logging.getLogger("vllm.process").error("%s", place(error))


def _handler(chosen: Format, content: logging.Filter | None) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(__name__)
    handler.setFormatter(JsonLines() if chosen == "json" else TextLines())
    if content is not None:
        handler.addFilter(content)
    return handler


def _on_a_standard_stream(handler: logging.Handler) -> bool:
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and any(handler.stream is one for one in streams)


class JsonLines(logging.Formatter):
    """One JSON object a line: time in UTC, level, logger, message, and what else the record has."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; newlines inside are escaped by JSON."""
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := _request_id.get():
            line["request_id"] = request_id
        if process := _process(record):
            line["process"] = process
        line |= _fields(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str, separators=(",", ":"))


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
    return fields if isinstance(fields, Mapping) and _ours(record.name) else {}


def _ours(name: str) -> bool:
    return name == "jubako" or name.startswith("jubako.")


def place(error: BaseException) -> str:
    """Type and place of an error, without its message: messages may quote prompts."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__} at {' < '.join(reversed(frames[-4:]))}"


class WithoutContent(logging.Filter):
    """Takes the traceback off a record and leaves its place, and leaves out values that may quote a request."""

    def __init__(self, *, engine_process: bool = False) -> None:
        super().__init__()
        self._engine_process = engine_process

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite `record`; libraries' debug records, which quote requests too, are dropped by their level."""
        if record.name == "vllm.process":
            return True
        if self._engine_process and (record.msg in _ENGINE_FAILS or record.name.startswith(_ENGINE_STARTS)):
            return record.levelno >= logging.INFO
        if not _ours(record.name):
            if record.levelno < logging.INFO:
                return False
            if record.args and not _numbers(record.args):
                # Values may quote the request (a bad tool call, a template's complaint); the sentence says enough.
                record.msg = f"{record.msg} [values left out, {record.filename}:{record.lineno}]"
                record.args = None
        if record.exc_info and record.exc_info[1] is not None:
            message, quoted = record.getMessage(), str(record.exc_info[1])
            if quoted and quoted in message:
                message = f"[message left out, {record.filename}:{record.lineno}]"
            record.msg = f"{message} {place(record.exc_info[1])}"
            record.args = None
        record.exc_info = record.exc_text = record.stack_info = None
        return True


def _numbers(args: object) -> bool:
    return isinstance(args, tuple) and all(isinstance(value, int | float) for value in args)
