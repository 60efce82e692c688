"""Log lines as they are written to standard error, with logging put back as it was."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import pytest

from jubako.sections import LogSettings

CANARY = "CANARY-7f3a"


class Said:
    """What was written to standard error so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def getvalue(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text


@contextmanager
def standard_error(capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """Standard error of this test, with logging put back as it was at its end."""
    loggers = [logging.getLogger(), *filter(_is_logger, logging.root.manager.loggerDict.values())]
    before = [(one, one.level, list(one.handlers), one.propagate, one.disabled) for one in loggers]
    hooks = warnings.showwarning, sys.unraisablehook, threading.excepthook
    try:
        yield Said(capsys)
    finally:
        warnings.showwarning, sys.unraisablehook, threading.excepthook = hooks
        for new in filter(_is_logger, logging.root.manager.loggerDict.values()):
            if new not in loggers:
                new.handlers.clear()
        for one, level, handlers, propagate, disabled in before:
            one.setLevel(level)
            one.handlers[:] = handlers
            one.propagate, one.disabled = propagate, disabled


def _is_logger(one: object) -> TypeGuard[logging.Logger]:
    return isinstance(one, logging.Logger)


def log_settings(form: str = "json", level: str = "info") -> LogSettings:
    """What the server has of its log."""
    return LogSettings.model_validate({"format": form, "level": level})


def lines_of(stream: Said) -> list[dict[str, Any]]:
    """Every line that was written so far, as JSON."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]
