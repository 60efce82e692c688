"""What the log's filter lets through: sentences and numbers, and no value or error that may quote a request."""

from __future__ import annotations

import logging
import logging.config
import re
import sys
from typing import Any

import pytest

from jubako.telemetry.logs import WithoutContent
from tests.log_lines import CANARY


class Library(logging.Logger):
    """A library's logger, and what is left of its last line; None if nothing is."""

    def __init__(self) -> None:
        super().__init__("vllm.any", logging.NOTSET + 1)
        self.left: str | None = None

    def handle(self, record: logging.LogRecord) -> None:
        """As the handler on the root does."""
        self.left = record.getMessage() if WithoutContent().filter(record) else None


@pytest.fixture
def library() -> Library:
    """One of each test."""
    return Library()


def test_values_that_may_quote_a_request_are_left_out(library: Library) -> None:
    """The sentence and its place stay."""
    library.warning("Tool call %r has arguments that are %d%% wrong", CANARY, 100)
    assert library.left is not None
    assert CANARY not in library.left
    assert "Tool call" in library.left
    assert "test_log_content.py:" in library.left


def test_numbers_stay(library: Library) -> None:
    """The engine's own figures are no content."""
    library.info("Running: %d reqs, %.1f%%", 3, 0.5)
    assert library.left == "Running: 3 reqs, 0.5%"


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (f"Tool call {CANARY} is wrong", ()),
        (f"Tool call {CANARY} is wrong after %d", (1,)),
        ("Tool call " + CANARY, ()),
        ("\n".join(["A task failed", repr(ValueError(CANARY))]), ()),
        (ValueError(CANARY), ()),
        ({"tool": CANARY}, ()),
    ],
)
def test_a_sentence_that_was_put_together_is_left_out(library: Library, message: object, values: Any) -> None:
    """Nothing shows which part of it was asked for; its place stays."""
    library.error(message, *values)
    assert library.left is not None
    assert re.fullmatch(r"\[message left out, test_log_content\.py:\d+\]", library.left)


def test_what_is_no_text_passes_the_engine_s_filter_too() -> None:
    """An exception in a filter would be the exception of whoever logs."""
    record = logging.LogRecord("vllm.any", logging.ERROR, "/x.py", 7, {"tool": CANARY}, (), None)
    assert WithoutContent(engine_process=True).filter(record)
    assert CANARY not in record.getMessage()


def test_a_sentence_that_was_chosen_stays(library: Library) -> None:
    """It is a constant of the code that says it, in whatever way it gets there."""

    def complain(*, often: bool) -> None:
        sentence = "This happens often" if often else "This happened"
        library.log(logging.WARNING, sentence)

    def through_a_wrapper() -> None:
        tell("Said by whoever calls the wrapper")

    def tell(sentence: str) -> None:
        library.warning(sentence, stacklevel=2)

    complain(often=True)
    assert library.left == "This happens often"
    through_a_wrapper()
    assert library.left == "Said by whoever calls the wrapper"


@pytest.mark.parametrize("level", [logging.DEBUG, logging.NOTSET + 1])
def test_debug_lines_are_dropped(library: Library, level: int) -> None:
    """They quote requests as a matter of course."""
    library.left = "something"
    library.log(level, CANARY)
    assert library.left is None


# -- what becomes of errors


def _failure(message: str) -> Any:
    try:
        raise ValueError(message)
    except ValueError:
        return sys.exc_info()


@pytest.mark.parametrize("logger", ["vllm.any", "uvicorn.error", "jubako.pipeline"])
def test_a_traceback_becomes_type_and_place(logger: str) -> None:
    """Its last line would quote the request."""
    record = logging.LogRecord(logger, logging.ERROR, "/x.py", 7, "it failed", (), _failure(CANARY))
    record.stack_info = CANARY
    assert WithoutContent().filter(record)
    said = logging.Formatter().format(record)
    assert CANARY not in said
    assert "ValueError at test_log_content.py:" in said


def test_a_sentence_that_quotes_its_own_error_is_left_out() -> None:
    """Some libraries build the message before they log it."""
    record = logging.LogRecord("vllm.any", logging.ERROR, "/x.py", 7, f"Error in tool: {CANARY}", (), _failure(CANARY))
    assert WithoutContent().filter(record)
    assert CANARY not in record.getMessage()
    assert "x.py:7" in record.getMessage()


def test_the_engine_s_process_may_say_why_it_did_not_start_and_nothing_like_it_later() -> None:
    """A start that failed served nobody; a fatal error may have happened in somebody's request."""
    content = WithoutContent(engine_process=True)
    started, died, files = (
        logging.LogRecord(name, logging.ERROR, "/x.py", 7, message, (), _failure("no such file"))
        for name, message in (
            ("vllm.v1.engine.core", "EngineCore failed to start."),
            ("vllm.v1.engine.core", "EngineCore encountered a fatal error."),
            ("vllm.model_executor.model_loader.weight_utils", "Loading failed"),
        )
    )
    assert [content.filter(record) for record in (started, died, files)] == [True] * 3
    assert [bool(record.exc_info) for record in (started, died, files)] == [True, False, True]
