"""What the filter on the engine's loggers lets through."""

from __future__ import annotations

import logging

import pytest

from jubako.telemetry.logs import WithoutContent

CANARY = "CANARY-7f3a"


def _said(message: str, *values: object, level: int = logging.WARNING) -> str | None:
    record = logging.LogRecord("vllm.any", level, "/somewhere/place.py", 7, message, values, None)
    return record.getMessage() if WithoutContent().filter(record) else None


def test_values_that_may_quote_a_request_are_left_out() -> None:
    """The sentence and its place stay."""
    said = _said("Tool call %r has arguments that are %d%% wrong", CANARY, 100)
    assert said is not None
    assert CANARY not in said
    assert "Tool call" in said
    assert "place.py:7" in said


def test_numbers_stay() -> None:
    """The engine's own figures are no content."""
    assert _said("Running: %d reqs, %.1f%%", 3, 0.5, level=logging.INFO) == "Running: 3 reqs, 0.5%"


@pytest.mark.parametrize("level", [logging.DEBUG, logging.NOTSET + 1])
def test_debug_lines_are_dropped(level: int) -> None:
    """They quote requests as a matter of course."""
    assert _said(CANARY, level=level) is None
