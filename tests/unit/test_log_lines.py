"""What each line of the log has: one object or one line, its request's id, and its level."""

from __future__ import annotations

import asyncio
import io
import logging
import logging.config
import re
import sys
from collections.abc import Iterator
from unittest import mock

import pytest

from jubako.telemetry import logs
from jubako.vocabulary import Usage
from tests.ended_requests import account
from tests.log_lines import CANARY, Said, lines_of, log_settings, standard_error


@pytest.fixture
def stream(capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    """Standard error of this test."""
    with standard_error(capsys) as said:
        yield said


def test_each_line_of_production_is_one_json_object(stream: Said) -> None:
    """Whatever the message has in it."""
    logs.configure(log_settings())
    logging.getLogger("jubako.life").info('two\nlines and a "quote" of %s', "é")
    (line,) = lines_of(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {"level": "info", "logger": "jubako.life", "message": 'two\nlines and a "quote" of é'}


def test_text_lines_cannot_be_forged(stream: Said) -> None:
    """A message of several lines is indented."""
    logs.configure(log_settings("text"))
    logging.getLogger("jubako.life").error("first\n2026-01-01 00:00:00.000 ERROR jubako: forged")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"[\d-]{10} [\d:]{8}\.\d{3} ERROR jubako\.life: first", first)
    assert second.startswith("    ")


async def test_every_line_within_a_request_has_its_id(stream: Said) -> None:
    """Tasks that a library starts within it too; requests side by side keep theirs."""
    logs.configure(log_settings())
    library = logging.getLogger("vllm.some.serving")

    async def answer(request_id: str) -> None:
        with logs.request(request_id):
            await asyncio.sleep(0)
            await asyncio.create_task(inside(request_id))
        library.warning("after")

    async def inside(request_id: str) -> None:
        library.warning("in %s", 1 if request_id == "one" else 2)

    await asyncio.gather(answer("one"), answer("two"))
    found = [(line["message"], line.get("request_id")) for line in lines_of(stream)]
    assert sorted(found, key=str) == [("after", None), ("after", None), ("in 1", "one"), ("in 2", "two")]


def test_a_request_has_one_line_of_names_and_numbers(stream: Said) -> None:
    """In JSON each on its own; the sentence is the one of the terminal."""
    logs.configure(log_settings())
    with logs.request("request-1"):
        logs.request_ended(account(usage=Usage(20, 16, 11)), "ab" * 16)
    (line,) = lines_of(stream)
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


@pytest.mark.parametrize("name", ["", "jubako", "jubako.requests"])
def test_the_line_of_a_request_goes_to_whoever_else_listens(
    stream: Said, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A handler of another's gets it as a record; on standard error it is the same line as without one."""
    logs.configure(log_settings())
    monkeypatch.setattr(logging.root, "handlers", [logging.root.handlers[-1]])  # pytest listens too
    records = mock.Mock(wraps=logging.root.handlers[0].emit)
    monkeypatch.setattr(logging.root.handlers[0], "emit", records)
    ended = account(usage=Usage(20, 16, 11))
    listener, told = logging.getLogger(name), mock.Mock(spec=logging.Handler, level=logging.NOTSET)
    with logs.request("request-1"):
        logs.request_ended(ended)
        listener.addHandler(told)
        try:
            logs.request_ended(ended)
        finally:
            listener.removeHandler(told)
        logs.request_ended(ended)
    first, beside, last = (list(line.items())[1:] for line in lines_of(stream))
    assert first == beside == last
    assert records.call_count == 1, "without another no record is made"
    assert [call.args[0].getMessage() for call in told.handle.call_args_list] == [dict(first)["message"]]


def test_the_terminal_s_line_of_a_request_names_it_once(stream: Said) -> None:
    """And other lines of the request name it in brackets."""
    logs.configure(log_settings("text"))
    with logs.request("request-1"):
        logging.getLogger("jubako.pipeline").warning("something")
        logs.request_ended(account())
    something, ended = stream.getvalue().splitlines()
    assert something.endswith("WARNING jubako.pipeline [request-1]: something")
    assert ended.count("request-1") == 1


@pytest.mark.parametrize(("level", "written"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_is_of_jubako_s_own_lines(stream: Said, level: str, written: int) -> None:
    """A library's debug lines are never written: they quote requests."""
    logs.configure(log_settings(level=level))
    own, library = logging.getLogger("jubako.any"), logging.getLogger("vllm.any")
    library.setLevel(logging.DEBUG)
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        own.log(number, "own")
    library.debug(CANARY)
    assert [line["message"] for line in lines_of(stream)] == ["own"] * written


def test_auto_is_text_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a container's lines can be read by machines."""
    for terminal, form in ((True, "text"), (False, "json")):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=terminal: answer)
        assert logs.chosen_format(log_settings("auto")) == form
