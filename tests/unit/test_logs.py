"""Log lines: what the filter lets through, what each line has, and that every library's lines look the same."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.config
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import pytest
from pydantic import BaseModel

from jubako.sections import LogSettings
from jubako.telemetry import logs
from jubako.telemetry.logs import WithoutContent
from jubako.vocabulary import Usage
from tests.ended_requests import account
from tests.project import REPOSITORY

CANARY = "CANARY-7f3a"


class Reply(BaseModel):
    """Such as libraries have: what is in it is not always what it says."""

    content: str


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
    assert "test_logs.py:" in library.left


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
    assert re.fullmatch(r"\[message left out, test_logs\.py:\d+\]", library.left)


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
    assert "ValueError at test_logs.py:" in said


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


# -- what a line has


class Said:
    """What was written to standard error so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def getvalue(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text


@pytest.fixture
def stream(capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """Standard error of this test, with logging put back as it was at its end."""
    loggers = [logging.getLogger(), *filter(_is_logger, logging.root.manager.loggerDict.values())]
    before = [(one, one.level, list(one.handlers), one.propagate, one.disabled) for one in loggers]
    hooks = warnings.showwarning, sys.unraisablehook, threading.excepthook
    yield Said(capsys)
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


def _settings(form: str = "json", level: str = "info") -> LogSettings:
    return LogSettings.model_validate({"format": form, "level": level})


def _lines(stream: Said) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_line_of_production_is_one_json_object(stream: Said) -> None:
    """Whatever the message has in it."""
    logs.configure(_settings())
    logging.getLogger("jubako.life").info('two\nlines and a "quote" of %s', "é")
    (line,) = _lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {"level": "info", "logger": "jubako.life", "message": 'two\nlines and a "quote" of é'}


def test_text_lines_cannot_be_forged(stream: Said) -> None:
    """A message of several lines is indented."""
    logs.configure(_settings("text"))
    logging.getLogger("jubako.life").error("first\n2026-01-01 00:00:00.000 ERROR jubako: forged")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"[\d-]{10} [\d:]{8}\.\d{3} ERROR jubako\.life: first", first)
    assert second.startswith("    ")


async def test_every_line_within_a_request_has_its_id(stream: Said) -> None:
    """Tasks that a library starts within it too; requests side by side keep theirs."""
    logs.configure(_settings())
    library = logging.getLogger("vllm.some.serving")

    async def answer(request_id: str) -> None:
        with logs.request(request_id):
            await asyncio.sleep(0)
            await asyncio.create_task(inside(request_id))
        library.warning("after")

    async def inside(request_id: str) -> None:
        library.warning("in %s", 1 if request_id == "one" else 2)

    await asyncio.gather(answer("one"), answer("two"))
    found = [(line["message"], line.get("request_id")) for line in _lines(stream)]
    assert sorted(found, key=str) == [("after", None), ("after", None), ("in 1", "one"), ("in 2", "two")]


def test_a_request_has_one_line_of_names_and_numbers(stream: Said) -> None:
    """In JSON each on its own; the sentence is the one of the terminal."""
    logs.configure(_settings())
    with logs.request("request-1"):
        logs.request_ended(account(usage=Usage(20, 16, 11)), "ab" * 16)
    (line,) = _lines(stream)
    assert line["message"].startswith(
        "request=request-1 route=chat_completions status=200 outcome=completed code=- seconds=3.000 "
    )
    del line["time"], line["message"]
    assert line == {
        "level": "info",
        "logger": "jubako.requests",
        "request_id": "request-1",
        "tenant": "acme",
        "key_id": "key-1",
        "route": "chat_completions",
        "alias": "smollm2",
        "stream": True,
        "status": 200,
        "outcome": "completed",
        "code": "",
        "priority": 2,
        "prompt_tokens": 20,
        "cached_tokens": 16,
        "generated_tokens": 11,
        "queue_seconds": 0.5,
        "first_token_seconds": 1.0,
        "seconds": 3.0,
        "trace_id": "ab" * 16,
    }


def test_the_terminal_s_line_of_a_request_names_it_once(stream: Said) -> None:
    """And other lines of the request name it in brackets."""
    logs.configure(_settings("text"))
    with logs.request("request-1"):
        logging.getLogger("jubako.pipeline").warning("something")
        logs.request_ended(account())
    something, ended = stream.getvalue().splitlines()
    assert something.endswith("WARNING jubako.pipeline [request-1]: something")
    assert ended.count("request-1") == 1


@pytest.mark.parametrize(("level", "written"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_is_of_jubako_s_own_lines(stream: Said, level: str, written: int) -> None:
    """A library's debug lines are never written: they quote requests."""
    logs.configure(_settings(level=level))
    own, library = logging.getLogger("jubako.any"), logging.getLogger("vllm.any")
    library.setLevel(logging.DEBUG)
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        own.log(number, "own")
    library.debug(CANARY)
    assert [line["message"] for line in _lines(stream)] == ["own"] * written


def test_auto_is_text_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a container's lines can be read by machines."""
    for terminal, form in ((True, "text"), (False, "json")):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=terminal: answer)
        assert logs.chosen_format(_settings("auto")) == form


# -- what Python says by itself


def test_a_warning_becomes_kind_and_place(stream: Said) -> None:
    """Serializers quote the value that they do not like."""
    logs.configure(_settings())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        unlike_its_type: Any = {"text": CANARY}
        Reply.model_construct(content=unlike_its_type).model_dump_json()
    (line,) = _lines(stream)
    assert (line["level"], line["logger"]) == ("warning", "jubako.python")
    assert re.fullmatch(r"UserWarning at main\.py:\d+", line["message"])
    assert CANARY not in stream.getvalue()


def test_a_library_that_has_warnings_logged_itself_changes_nothing(stream: Said) -> None:
    """They come as a text then, which nobody wrote as it is."""
    logs.configure(_settings())
    logging.captureWarnings(True)  # noqa: FBT003 - the standard library's signature
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(CANARY, stacklevel=1)
    finally:
        logging.captureWarnings(False)  # noqa: FBT003
    (line,) = _lines(stream)
    assert line["logger"] == "py.warnings"
    assert CANARY not in stream.getvalue()


def test_errors_that_nobody_catches_become_places(stream: Said) -> None:
    """In threads, and where Python can only drop them."""

    class Careless:
        def __del__(self) -> None:
            raise ValueError(CANARY)

    def fail() -> None:
        raise KeyError(CANARY)

    logs.configure(_settings())
    Careless()
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    dropped, ended = _lines(stream)
    assert "ValueError at test_logs.py:" in dropped["message"]
    assert "KeyError at test_logs.py:" in ended["message"]
    assert CANARY not in stream.getvalue()


# -- everybody else's loggers


def test_lines_of_bentoml_uvicorn_and_libraries_have_our_format(stream: Said) -> None:
    """Their own handlers go, as BentoML sets them up and as libraries bring them; values and tracebacks with them."""
    from bentoml._internal.log import SERVER_LOGGING_CONFIG

    logging.config.dictConfig(SERVER_LOGGING_CONFIG)
    brought = logging.getLogger("somelibrary")
    brought.addHandler(logging.StreamHandler(sys.stdout))
    brought.propagate = False
    logs.configure(_settings())
    logs.configure(_settings())
    for name in ("bentoml.server", "uvicorn.error", "circus", "asyncio", "somelibrary", "never.seen.before"):
        try:
            raise ValueError(CANARY)
        except ValueError:
            logging.getLogger(name).exception("failed with %s", CANARY)
    lines = _lines(stream)
    assert [line["logger"] for line in lines] == [
        *("bentoml.server", "uvicorn.error", "circus", "asyncio", "somelibrary", "never.seen.before")
    ]
    assert CANARY not in stream.getvalue()
    assert all("ValueError at test_logs.py" in line["message"] for line in lines)


def test_access_lines_are_nobody_s_but_ours(stream: Said) -> None:
    """They would name paths and addresses as they came."""
    logs.configure(_settings(level="debug"))
    for name in ("uvicorn.access", "bentoml.access"):
        logging.getLogger(name).critical('"GET /v1/%s"', CANARY)
    assert stream.getvalue() == ""


def test_libraries_that_come_with_the_engine_are_taken_over_too(stream: Said) -> None:
    """With their handlers, and loggers that they turned off."""
    logs.configure(_settings())
    late = logging.getLogger("late.library")  # no real one: other tests import those, beside another standard error
    late.addHandler(logging.StreamHandler(sys.stderr))
    late.propagate = False
    logging.getLogger("asyncio").disabled = True
    logs.keep_content_out("vllm")
    late.warning("said %s", CANARY)
    logging.getLogger("asyncio").error("said %s", CANARY)
    assert [line["logger"] for line in _lines(stream)] == ["late.library", "asyncio"]
    assert CANARY not in stream.getvalue()


ENGINE = """
import multiprocessing
import warnings
from vllm.logger import init_logger, set_vllm_process_name

class Config:  # the fields of vLLM's own that its function reads; importing that takes many seconds
    configure_logging, log_level, formatter = True, "INFO", "text"
    def __init__(self):
        import os
        self.pylogging_config_file = os.environ["VLLM_LOGGING_CONFIG_PATH"]

def set_up():
    import vllm.logger
    vllm.logger._configure_vllm_root_logger(Config())

def engine(given):
    set_up()
    set_vllm_process_name("EngineCore")
    init_logger("vllm.v1.engine.core").warning("request %s is odd", "CANARY-7f3a")
    init_logger("vllm.v1.core.kv_cache_utils").info("GPU KV cache size: %s tokens", "12,288")
    init_logger("vllm.v1.engine.core").warning(f"request {given} is odd")
    warnings.warn(given)
    raise ValueError("CANARY-7f3a")

if __name__ == "__main__":
    from jubako.sections import LogSettings
    from jubako.telemetry import logs
    logs.configure(LogSettings(format="json", level="debug"))
    set_up()
    init_logger("vllm.v1.engine.async_llm").info("config: %s", "shown while it starts")
    process = multiprocessing.get_context("spawn").Process(target=engine, args=("CANARY-7f3a",), name="EngineCore")
    process.start()
    process.join()
    logs.keep_content_out("vllm")
    init_logger("vllm.v1.engine.async_llm").info("request: %s", "CANARY-7f3a")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_engine_s_processes_log_in_our_format_and_without_content(tmp_path: Path) -> None:
    """By vLLM's own way of setting up logging, in the serving process and in the one that it spawns."""
    script = tmp_path / "script.py"
    script.write_text(ENGINE)
    environment = os.environ | logs.engine_environment(_settings())
    ran = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert "CANARY" not in ran.stdout + ran.stderr
    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]
    said = [
        (line["logger"], line.get("process"), re.sub(r"script\.py:.*", "script.py", line["message"])) for line in lines
    ]
    assert [one for one in said if one[0].startswith(("vllm.v1", "vllm.process", "jubako"))] == [
        ("vllm.v1.engine.async_llm", None, "config: shown while it starts"),
        ("vllm.v1.engine.core", "EngineCore", "request %s is odd [values left out, script.py"),
        ("vllm.v1.core.kv_cache_utils", "EngineCore", "GPU KV cache size: 12,288 tokens"),
        ("vllm.v1.engine.core", "EngineCore", "[message left out, script.py"),
        ("jubako.python", "EngineCore", "UserWarning at script.py"),
        ("vllm.process", "EngineCore", "ValueError at script.py"),
        ("vllm.v1.engine.async_llm", None, "request: %s [values left out, script.py"),
    ]


def test_vllm_can_read_the_configuration_that_it_is_given() -> None:
    """It is data of the package, which a build must bring along."""
    path = Path(logs.engine_environment(_settings("text"))["VLLM_LOGGING_CONFIG_PATH"])
    configuration = json.loads(path.read_text())
    assert path.is_relative_to(Path(logs.__file__).parent)
    module, _, name = configuration["handlers"]["jubako"]["()"].rpartition(".")
    assert module == logs.__name__
    assert isinstance(getattr(logs, name)(), logging.Handler)
    assert path.name in (REPOSITORY / "pyproject.toml").read_text()
