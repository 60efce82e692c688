"""What must never be in a log line, and the filter that keeps it out.

- Jubako's own lines are written with care and kept, without tracebacks: the last line of one quotes a value.
- Libraries' lines keep their sentence if it is a constant of the code that says it, for nothing else shows that no
  request is quoted. Values are left out unless they are numbers, tracebacks become places, and nothing below INFO
  passes: those lines quote requests as a matter of course.
- Of what Python says by itself, warnings and errors that nobody caught, the kind and the place are kept.
- The engine's lines are kept whole until it serves, because a failed start must be understood. In the engine's own
  process, where nobody says when that is, it is what its loggers of files and memory say, and why a start failed.

Knows records and nothing else: the engine's process imports it too.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator

_ENGINE_STARTS = (
    "vllm.v1.core.kv_cache_utils",
    "vllm.model_executor.model_loader",
    "vllm.platforms",
    "vllm.distributed.parallel_state",
)
"""Loggers of the engine's process that see files, memory and devices, and no request."""
_ENGINE_FAILS = frozenset({"EngineCore failed to start.", "WorkerProc failed to start."})
"""What the engine's process says when it never served: the traceback is what the operator needs."""


def ours(name: str) -> bool:
    """Whether the logger `name` is Jubako's own."""
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
        if self._engine_process and (str(record.msg) in _ENGINE_FAILS or record.name.startswith(_ENGINE_STARTS)):
            return record.levelno >= logging.INFO
        if not ours(record.name):
            if record.levelno < logging.INFO:
                return False
            if not _constant(record):
                record.msg = f"[message left out, {record.filename}:{record.lineno}]"
                record.args = None
            elif record.args and not _numbers(record.args):
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


def _constant(record: logging.LogRecord) -> bool:
    """Whether the sentence stands as it is in the code that says it, which is still on the stack.

    One that was put together, in whatever way, may have a request in it.
    """
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == record.funcName and code.co_filename == record.pathname:
            return isinstance(record.msg, str) and record.msg in _texts(code.co_consts)
        frame = frame.f_back
    return False


def _texts(constants: tuple[object, ...]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from _texts(constant)
