"""Python's, every library's and the engine processes' lines look as ours do, without content."""

from __future__ import annotations

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
from typing import Any

import pytest
from pydantic import BaseModel

from jubako.telemetry import logs
from tests.log_lines import CANARY, Said, lines_of, log_settings, standard_error
from tests.project import REPOSITORY


class Reply(BaseModel):
    """Such as libraries have: what is in it is not always what it says."""

    content: str


@pytest.fixture
def stream(capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """Standard error of this test."""
    with standard_error(capsys) as said:
        yield said


def test_a_warning_becomes_kind_and_place(stream: Said) -> None:
    """Serializers quote the value that they do not like."""
    logs.configure(log_settings())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        unlike_its_type: Any = {"text": CANARY}
        Reply.model_construct(content=unlike_its_type).model_dump_json()
    (line,) = lines_of(stream)
    assert (line["level"], line["logger"]) == ("warning", "jubako.python")
    assert re.fullmatch(r"UserWarning at main\.py:\d+", line["message"])
    assert CANARY not in stream.getvalue()


def test_a_library_that_has_warnings_logged_itself_changes_nothing(stream: Said) -> None:
    """They come as a text then, which nobody wrote as it is."""
    logs.configure(log_settings())
    logging.captureWarnings(True)  # noqa: FBT003 - the standard library's signature
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(CANARY, stacklevel=1)
    finally:
        logging.captureWarnings(False)  # noqa: FBT003
    (line,) = lines_of(stream)
    assert line["logger"] == "py.warnings"
    assert CANARY not in stream.getvalue()


def test_errors_that_nobody_catches_become_places(stream: Said) -> None:
    """In threads, and where Python can only drop them."""

    class Careless:
        def __del__(self) -> None:
            raise ValueError(CANARY)

    def fail() -> None:
        raise KeyError(CANARY)

    logs.configure(log_settings())
    Careless()
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    dropped, ended = lines_of(stream)
    assert "ValueError at test_log_libraries.py:" in dropped["message"]
    assert "KeyError at test_log_libraries.py:" in ended["message"]
    assert CANARY not in stream.getvalue()


# -- everybody else's loggers


def test_lines_of_bentoml_uvicorn_and_libraries_have_our_format(stream: Said) -> None:
    """Their own handlers go, as BentoML sets them up and as libraries bring them; values and tracebacks with them."""
    from bentoml._internal.log import SERVER_LOGGING_CONFIG

    logging.config.dictConfig(SERVER_LOGGING_CONFIG)
    brought = logging.getLogger("somelibrary")
    brought.addHandler(logging.StreamHandler(sys.stdout))
    brought.propagate = False
    logs.configure(log_settings())
    logs.configure(log_settings())
    for name in ("bentoml.server", "uvicorn.error", "circus", "asyncio", "somelibrary", "never.seen.before"):
        try:
            raise ValueError(CANARY)
        except ValueError:
            logging.getLogger(name).exception("failed with %s", CANARY)
    lines = lines_of(stream)
    assert [line["logger"] for line in lines] == [
        *("bentoml.server", "uvicorn.error", "circus", "asyncio", "somelibrary", "never.seen.before")
    ]
    assert CANARY not in stream.getvalue()
    assert all("ValueError at test_log_libraries.py" in line["message"] for line in lines)


def test_access_lines_are_nobody_s_but_ours(stream: Said) -> None:
    """They would name paths and addresses as they came."""
    logs.configure(log_settings(level="debug"))
    for name in ("uvicorn.access", "bentoml.access"):
        logging.getLogger(name).critical('"GET /v1/%s"', CANARY)
    assert stream.getvalue() == ""


def test_libraries_that_come_with_the_engine_are_taken_over_too(stream: Said) -> None:
    """With their handlers, and loggers that they turned off."""
    logs.configure(log_settings())
    late = logging.getLogger("late.library")  # no real one: other tests import those, beside another standard error
    late.addHandler(logging.StreamHandler(sys.stderr))
    late.propagate = False
    logging.getLogger("asyncio").disabled = True
    logs.keep_content_out("vllm")
    late.warning("said %s", CANARY)
    logging.getLogger("asyncio").error("said %s", CANARY)
    assert [line["logger"] for line in lines_of(stream)] == ["late.library", "asyncio"]
    assert CANARY not in stream.getvalue()


# -- the engine's processes


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
    environment = os.environ | logs.engine_environment(log_settings())
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
    path = Path(logs.engine_environment(log_settings("text"))["VLLM_LOGGING_CONFIG_PATH"])
    configuration = json.loads(path.read_text())
    assert path.is_relative_to(Path(logs.__file__).parent)
    module, _, name = configuration["handlers"]["jubako"]["()"].rpartition(".")
    assert module == logs.__name__
    assert isinstance(getattr(logs, name)(), logging.Handler)
    assert path.name in (REPOSITORY / "pyproject.toml").read_text()
