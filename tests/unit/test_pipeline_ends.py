"""Each way in which a request ends: what the caller, the engine and the log are told of it, and of no text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from jubako.errors import DeadlineExceeded, InternalError, InvalidRequest
from jubako.life import engine_lost, shutting_down
from tests.caller import Caller, ended, policy, ready_pipeline
from tests.scripted_engine import DONE, ScriptedEngine, event, hangs, raises, says, streams, swallows_cancellation

CANARY = "the-canary-sings-at-dawn"
ASKED = {"messages": [{"role": "user", "content": CANARY}]}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Every line that is logged at any level, as a handler would write it."""
    found: list[str] = []

    class Writer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    writer = Writer(logging.DEBUG)
    loggers = [logging.getLogger(), logging.getLogger("jubako")]
    levels = [logger.level for logger in loggers]
    propagates = loggers[1].propagate
    loggers[1].propagate = True
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    loggers[0].addHandler(writer)
    yield found
    loggers[0].removeHandler(writer)
    loggers[1].propagate = propagates
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_in_the_engine_is_told_without_its_message(lines: list[str], *, stream: bool) -> None:
    """The caller gets a plain 500 with retry advice; the log gets the place; nobody gets the message."""
    engine = ScriptedEngine(raises(ValueError(f"cannot make sense of {CANARY}")))
    caller = await Caller({**ASKED, "stream": stream}, headers={"x-request-id": "r1"}).call(ready_pipeline(engine))
    assert caller.status == 500
    assert caller.error == {
        "message": "The server had an internal error.",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert caller.headers["x-should-retry"] == "true"
    assert any("request r1 failed: ValueError at" in line for line in lines)
    assert any("outcome=failed code=internal_error" in line for line in lines)
    assert CANARY not in "".join(lines)


async def test_an_internal_error_of_the_engine_s_own_is_logged_with_its_cause(lines: list[str]) -> None:
    """A refusal that stands for another error leaves a trace of that one, without its message."""
    error = InternalError("The server had an internal error.")
    error.__cause__ = KeyError(CANARY)
    await Caller(ASKED).call(ready_pipeline(ScriptedEngine(raises(error))))
    assert any("failed: KeyError" in line for line in lines)
    assert any("outcome=failed" in line for line in lines)
    assert CANARY not in "".join(lines)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (says({"text": CANARY}), "outcome=completed"),
        (streams(event(CANARY), DONE), "outcome=completed"),
        (streams(event(CANARY), RuntimeError(CANARY)), "outcome=failed"),
        (raises(InvalidRequest(CANARY)), "outcome=refused"),
        (raises(DeadlineExceeded("late")), "outcome=deadline"),
    ],
)
async def test_no_text_of_a_request_is_logged(lines: list[str], script: object, outcome: str) -> None:
    """Not the prompt, not the answer, not an error that quotes them, at any level; one line a request."""
    engine = ScriptedEngine(script)  # type: ignore[arg-type]
    stream = "streams" in getattr(script, "__qualname__", "")
    await Caller({**ASKED, "stream": stream}).call(ready_pipeline(engine))
    assert CANARY not in "".join(lines)
    assert sum("request=" in line for line in lines) == 1
    assert any(outcome in line for line in lines)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_leaves_ends_the_work(lines: list[str], *, stream: bool) -> None:
    """The engine is told to stop, and the outcome says who ended it.

    The exchange is ended all the same: a middleware that waits for a first message would wait for ever.
    """
    engine = ScriptedEngine(hangs())
    pipeline = ready_pipeline(engine)
    caller = Caller({**ASKED, "stream": stream})
    task = caller.begin(pipeline)
    await engine.asked.wait()
    caller.leave()
    await task
    assert engine.aborted == [engine.calls[0].request_id]
    assert pipeline.life.in_flight == 0
    assert any("status=499 outcome=cancelled" in line for line in lines)


async def test_a_whole_reply_that_takes_too_long_is_a_timeout(lines: list[str]) -> None:
    """The engine is told to stop, and the caller hears 504 and to come back."""
    engine = ScriptedEngine(hangs())
    caller = await Caller(ASKED).call(ready_pipeline(engine, given=policy(deadline_seconds=0.05)))
    assert caller.sent[0]["status"] == 504
    assert b"deadline_exceeded" in caller.sent[1]["body"]
    assert engine.aborted == [engine.calls[0].request_id]
    assert any("outcome=deadline" in line for line in lines)


@pytest.mark.parametrize(
    ("cause", "code"), [(shutting_down, "draining"), (engine_lost, "engine_unavailable")], ids=["drain", "death"]
)
async def test_an_interrupted_request_is_told_why_even_if_the_engine_swallows_it(cause: object, code: str) -> None:
    """vLLM's serving objects turn a cancellation into a 400 that means nothing; the cause is what counts."""
    engine = ScriptedEngine(swallows_cancellation(InvalidRequest("Client disconnected")))
    pipeline = ready_pipeline(engine)
    caller = Caller(ASKED)
    task = caller.begin(pipeline)
    await engine.asked.wait()
    pipeline.life.interrupt_all(cause)  # type: ignore[arg-type]
    await task
    assert (caller.status, caller.error["code"]) == (503, code)
    assert caller.headers["x-should-retry"] == "true"
    assert task.cancelling() == 0


async def test_a_caller_who_left_is_not_told_what_the_engine_made_of_it(lines: list[str]) -> None:
    """A swallowed cancellation is still one."""
    engine = ScriptedEngine(swallows_cancellation(InvalidRequest("Client disconnected")))
    caller = Caller(ASKED)
    task = caller.begin(ready_pipeline(engine))
    await engine.asked.wait()
    caller.leave()
    await task
    assert caller.sent == []
    assert any("outcome=cancelled" in line for line in lines)


async def test_streams_are_told_of_the_end_in_an_event() -> None:
    """A stream that is cut by the drain says so and has no end marker."""
    engine = ScriptedEngine(streams(event("a"), asyncio.Event()))
    pipeline = ready_pipeline(engine)
    callers = [Caller({**ASKED, "stream": True}) for _ in range(3)]
    tasks = [caller.begin(pipeline) for caller in callers]
    for caller in callers:
        await caller.received(event("a"))
    pipeline.life.interrupt_all(shutting_down)
    await asyncio.gather(*tasks)
    for caller in callers:
        assert caller.error["code"] == "draining"
        assert caller.ended
        assert DONE not in caller.body
    assert len(engine.aborted) == 3


async def test_the_process_s_own_cancellation_passes() -> None:
    """Whoever cancels the task from outside gets what it asked for."""
    engine = ScriptedEngine(hangs())
    task = Caller(ASKED).begin(ready_pipeline(engine))
    await engine.asked.wait()
    task.cancel()
    await ended(task)
    assert task.cancelled()
    assert engine.aborted == [engine.calls[0].request_id]


@pytest.mark.parametrize("answer", [streams(DONE), says({})])
async def test_an_engine_that_gives_the_other_kind_of_reply_is_a_fault_of_ours(answer: object) -> None:
    """A stream where none was asked for, or none where one was, is a 500 and aborted."""
    engine = ScriptedEngine(answer)  # type: ignore[arg-type]
    stream = "says" in getattr(answer, "__qualname__", "")
    caller = await Caller({**ASKED, "stream": stream}).call(ready_pipeline(engine))
    assert caller.status == 500
    assert engine.aborted == [engine.calls[0].request_id]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_lowered_by_the_caller_ends_either_kind(stream: bool) -> None:
    """A whole reply with 504, a stream with an event; and the engine stops."""
    engine = ScriptedEngine(streams(event("a"), asyncio.Event()) if stream else hangs())
    headers = {"x-request-timeout-ms": "50"}
    caller = await Caller({**ASKED, "stream": stream}, headers=headers).call(ready_pipeline(engine))
    assert caller.status == (200 if stream else 504)
    assert caller.error["code"] == "deadline_exceeded"
    assert engine.aborted == [engine.calls[0].request_id]
