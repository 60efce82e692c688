"""Where log lines go, and what must never be in them. Knows nothing of who logs."""

from __future__ import annotations

import logging


def configure(level: int = logging.INFO) -> None:
    """Write Jubako's log lines to standard error, once however often this is called."""
    root = logging.getLogger("jubako")
    root.setLevel(level)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False


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
    """Takes the traceback off a record and leaves its place: the last line of a traceback quotes the request."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite `record`; debug records of request handling, which quote it too, are dropped by their level."""
        if record.levelno < logging.INFO:
            return False
        if record.args and not _numbers(record.args):
            # Values may quote the request (a malformed tool call, a template's complaint); the sentence says enough.
            record.msg = f"{record.msg} [values left out, {record.filename}:{record.lineno}]"
            record.args = None
        if record.exc_info and record.exc_info[1] is not None:
            record.msg = f"{record.getMessage()} {place(record.exc_info[1])}"
            record.args = None
            record.exc_info = record.exc_text = None
        return True


def _numbers(args: object) -> bool:
    return isinstance(args, tuple) and all(isinstance(value, int | float) for value in args)


def keep_content_out(name: str) -> None:
    """Apply `WithoutContent` to everything that the loggers below `name` hand out."""
    for handler in logging.getLogger(name).handlers:
        if not any(isinstance(one, WithoutContent) for one in handler.filters):
            handler.addFilter(WithoutContent())
