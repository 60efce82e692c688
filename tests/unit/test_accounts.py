"""Each request is told once, at its end, whatever that is, and before its caller has the last bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from jubako.errors import DeadlineExceeded, InvalidRequest, Unavailable
from jubako.life import engine_lost, shutting_down
from jubako.sections import StreamSettings
from jubako.vocabulary import Account, Call, Outcome, Reply, Stream
from tests.caller import Caller, NoBooks, NoBudgets, ended, policy, ready_pipeline
from tests.scripted_engine import DONE, ScriptedEngine, event, hangs, raises, says, streams, swallows_cancellation

ASKED = {"messages": [{"role": "user", "content": "hello"}]}
STREAMED = ASKED | {"stream": True}


async def told(engine: ScriptedEngine, caller: Caller, **parts: Any) -> Account:
    """The one account of a request."""
    books = NoBooks()
    await caller.call(ready_pipeline(engine, books=books, **parts))
    assert len(books.accounts) == 1
    return books.accounts[0]


def facts(account: Account) -> tuple[Outcome, str, int]:
    """How it ended."""
    return account.outcome, account.code, account.status


def logged(record: logging.LogRecord) -> tuple[Outcome, str, int]:
    """The same, as the log's line has it."""
    fields: dict[str, Any] = record.__dict__["fields"]
    return Outcome(fields["outcome"]), fields["code"], fields["status"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_whole_answer_is_completed(*, stream: bool) -> None:
    """With who asked for what, and what it took."""
    engine = ScriptedEngine(streams(event("a"), DONE) if stream else says({}))
    engine.prompt_tokens = 7
    account = await told(engine, Caller(ASKED | {"stream": stream}, headers={"x-request-id": "mine"}))
    assert facts(account) == (Outcome.COMPLETED, "", 200)
    assert (account.request_id, account.tenant, account.key_id) == ("mine", "default", "the-key")
    assert (account.route, account.alias, account.stream) == ("chat_completions", "scripted", stream)
    assert (account.release, account.priority, account.usage.prompt_tokens) == ("d" * 64, 1, 7)
    assert 0 <= account.queue_seconds <= account.total_seconds < 10


async def test_an_answer_that_ran_into_its_bound_is_told_apart() -> None:
    """The engine says so in the usage."""

    async def cut(call: Call) -> Reply:
        call.usage.cut = True
        return await says({})(call)

    assert (await told(ScriptedEngine(cut), Caller(ASKED))).outcome is Outcome.LENGTH


@pytest.mark.parametrize(
    ("caller", "facts_told", "route"),
    [
        (Caller(path="/nope"), (Outcome.REFUSED, "unknown_url", 404), "unknown"),
        (Caller(headers={"authorization": "Bearer x"}), (Outcome.REFUSED, "invalid_api_key", 401), "chat_completions"),
        (Caller(b"{"), (Outcome.REFUSED, "invalid_json", 400), "chat_completions"),
        (Caller(b"", method="GET", path="/v1/models"), (Outcome.COMPLETED, "", 200), "models"),
        (Caller(b"", method="GET", path="/v1/models/x"), (Outcome.REFUSED, "model_not_found", 404), "model"),
    ],
    ids=["path", "key", "body", "models", "model"],
)
async def test_what_never_reached_the_engine_is_told_too(
    caller: Caller, facts_told: tuple[Outcome, str, int], route: str
) -> None:
    """With as much as was known by then."""
    account = await told(ScriptedEngine(), caller)
    assert (facts(account), account.route) == (facts_told, route)
    assert account.tenant == ("" if caller.status in {401, 404} and route != "model" else "default")


@pytest.mark.parametrize(
    ("script", "whole", "streamed"),
    [
        (raises(InvalidRequest("no")), (Outcome.REFUSED, "invalid_value", 400), None),
        (raises(ValueError("x")), (Outcome.FAILED, "internal_error", 500), None),
        (raises(engine_lost()), (Outcome.FAILED, "engine_unavailable", 503), None),
        (raises(DeadlineExceeded("late")), (Outcome.DEADLINE, "deadline_exceeded", 504), None),
        (streams(event("a"), engine_lost()), None, (Outcome.FAILED, "engine_unavailable", 200)),
        (streams(event("a"), ValueError("x")), None, (Outcome.FAILED, "internal_error", 200)),
    ],
    ids=["invalid", "fault", "dead", "late", "dead in the stream", "fault in the stream"],
)
async def test_an_error_of_the_engine_is_told_as_its_caller_heard_it(script: Any, whole: Any, streamed: Any) -> None:
    """The status is the one that was sent."""
    account = await told(ScriptedEngine(script), Caller(STREAMED if streamed else ASKED))
    assert facts(account) == (whole or streamed)


async def test_a_budget_s_refusal_is_no_fault() -> None:
    """Also where the server is what refuses."""
    budgets = NoBudgets()
    budgets.refusal = Unavailable("no", code="not_ready")
    account = await told(ScriptedEngine(), Caller(ASKED), budgets=budgets)
    assert facts(account) == (Outcome.REFUSED, "not_ready", 503)
    assert (account.alias, account.queue_seconds) == ("scripted", 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [hangs(), swallows_cancellation(InvalidRequest("gone"))], ids=["honest", "vLLM"])
async def test_who_leaves_is_told_with_what_was_used_by_then(script: Any, *, stream: bool) -> None:
    """After the engine was told to stop, as only then its count is final; and once."""
    books, engine = NoBooks(), ScriptedEngine(script)
    engine.prompt_tokens = 9
    pipeline = ready_pipeline(engine, books=books)
    aborted_first: list[bool] = []
    books.on_record = lambda: aborted_first.append(bool(engine.aborted))
    caller = Caller(ASKED | {"stream": stream})
    task = caller.begin(pipeline)
    await engine.asked.wait()
    caller.leave()
    await task
    assert [facts(one) for one in books.accounts] == [(Outcome.CANCELLED, "", 499)]
    assert books.accounts[0].usage.prompt_tokens == 9
    assert aborted_first == [True]


async def test_a_deadline_is_told() -> None:
    """While nothing was sent: with its status."""
    account = await told(ScriptedEngine(hangs()), Caller(ASKED), given=policy(deadline_seconds=0.05))
    assert facts(account) == (Outcome.DEADLINE, "deadline_exceeded", 504)


async def test_the_process_s_own_cancellation_is_told() -> None:
    """As a failure: nobody but the server ended it."""
    books, engine = NoBooks(), ScriptedEngine(hangs())
    task = Caller(ASKED).begin(ready_pipeline(engine, books=books))
    await engine.asked.wait()
    task.cancel()
    await ended(task)
    assert [facts(one) for one in books.accounts] == [(Outcome.FAILED, "internal_error", 500)]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_order_at_the_end(*, stream: bool) -> None:
    """The place is left, the reservation settled, the account on record, and then the caller has the last bytes."""
    books, budgets = NoBooks(), NoBudgets()
    engine = ScriptedEngine(streams(event("a"), DONE) if stream else says({"text": "a"}))
    engine.prompt_tokens = 1
    pipeline = ready_pipeline(engine, books=books, budgets=budgets)
    caller = Caller(ASKED | {"stream": stream})
    seen: list[tuple[int, list[int | None], bytes]] = []
    books.on_record = lambda: seen.append((pipeline.admission.running, list(budgets.ended), caller.body))
    await caller.call(pipeline)
    assert seen == [(0, [1], event("a") if stream else b"")]


@pytest.mark.parametrize("script", [streams(event("a"), DONE), streams(DONE)], ids=["begun", "not begun"])
async def test_a_stream_that_cannot_be_put_on_record_fails(script: Any) -> None:
    """It ends in an error and without the mark of a whole one; what was used is settled all the same."""
    books, budgets, engine = NoBooks(), NoBudgets(), ScriptedEngine(script)
    books.full = True
    engine.prompt_tokens = 1
    caller = await Caller(STREAMED).call(ready_pipeline(engine, books=books, budgets=budgets))
    assert caller.error["code"] == "not_ready"
    assert caller.ended
    assert DONE not in caller.body
    assert budgets.ended == [1]


@pytest.mark.parametrize("caller", [Caller(ASKED), Caller(b"{"), Caller(path="/nope")], ids=["answer", "400", "404"])
async def test_no_whole_reply_is_sent_that_is_not_on_record(caller: Caller) -> None:
    """Not even a refusal."""
    books = NoBooks()
    books.full = True
    await caller.call(ready_pipeline(ScriptedEngine(), books=books))
    assert (caller.status, caller.error["code"]) == (503, "not_ready")
    assert caller.headers["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("script", "caller", "heard"),
    [
        (says({}), Caller(ASKED), (Outcome.FAILED, "not_ready", 503)),
        (streams(event("a"), DONE), Caller(STREAMED), (Outcome.FAILED, "not_ready", 200)),
        (streams(event("a"), engine_lost()), Caller(STREAMED), (Outcome.FAILED, "not_ready", 200)),
        (raises(DeadlineExceeded("late")), Caller(ASKED), (Outcome.FAILED, "not_ready", 503)),
        (says({}), Caller(b"{"), (Outcome.REFUSED, "not_ready", 503)),
        (says({}), Caller(headers={"authorization": "Bearer x"}), (Outcome.REFUSED, "not_ready", 503)),
        (says({}), Caller(path="/nope"), (Outcome.REFUSED, "not_ready", 503)),
    ],
    ids=["answer", "stream", "lost stream", "deadline", "400", "401", "404"],
)
async def test_operators_are_told_what_the_caller_of_an_unrecorded_request_heard(
    script: Any, caller: Caller, heard: tuple[Outcome, str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """In the log's line as in metrics; a full disk makes no failures of what would have been refused anyway."""
    books = NoBooks()
    books.full = True
    with caplog.at_level(logging.INFO, "jubako.requests"):
        await caller.call(ready_pipeline(ScriptedEngine(script), books=books))
    assert (caller.status, caller.error["code"]) == (heard[2], heard[1])
    assert [logged(record) for record in caplog.records if record.name == "jubako.requests"] == [heard]


async def test_who_left_stays_one_who_left_without_a_record(caplog: pytest.LogCaptureFixture) -> None:
    """There is nobody who could hear anything else."""
    books, engine = NoBooks(), ScriptedEngine(hangs())
    books.full = True
    caller = Caller(ASKED)
    with caplog.at_level(logging.INFO, "jubako.requests"):
        task = caller.begin(ready_pipeline(engine, books=books))
        await engine.asked.wait()
        caller.leave()
        await task
    assert [logged(record) for record in caplog.records if record.name == "jubako.requests"] == [
        (Outcome.CANCELLED, "", 499)
    ]


async def test_nothing_is_begun_that_could_not_be_put_on_record() -> None:
    """A server whose disk is full asks nothing of the engine."""
    books, engine = NoBooks(), ScriptedEngine()
    books.refuses = True
    caller = await Caller(ASKED).call(ready_pipeline(engine, books=books))
    assert (caller.status, engine.calls) == (503, [])
    assert [one.code for one in books.accounts] == ["not_ready"]


@pytest.mark.parametrize("cause", [shutting_down, engine_lost], ids=["drain", "death"])
async def test_what_is_on_record_as_completed_is_sent_as_that(cause: Any) -> None:
    """A drain, a death or a deadline that comes between the record and a slow reader changes nothing any more."""
    books, engine = NoBooks(), ScriptedEngine(streams(event("a"), DONE))
    pipeline = ready_pipeline(engine, books=books, given=policy(deadline_seconds=0.3))
    caller = Caller(STREAMED)
    books.on_record = caller.reads.clear
    task = caller.begin(pipeline)
    while not books.accounts:
        await asyncio.sleep(0)
    pipeline.life.interrupt_all(cause)
    await asyncio.sleep(0.35)
    caller.reads.set()
    await task
    assert caller.body == event("a") + DONE
    assert [facts(one) for one in books.accounts] == [(Outcome.COMPLETED, "", 200)]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_vanishes_after_the_record_keeps_the_outcome(*, stream: bool) -> None:
    """There is no second account, and the exchange ends."""
    books, engine = NoBooks(), ScriptedEngine(streams(event("a"), DONE) if stream else says({}))
    impatient = StreamSettings(keep_alive_seconds=60, stalled_reader_seconds=0.1)
    pipeline = ready_pipeline(engine, books=books, stream=impatient)
    caller = Caller(ASKED | {"stream": stream})
    books.on_record = caller.reads.clear
    await caller.begin(pipeline)
    assert [facts(one) for one in books.accounts] == [(Outcome.COMPLETED, "", 200)]
    assert pipeline.life.in_flight == 0


async def test_the_account_is_not_changed_by_what_the_engine_says_later() -> None:
    """What is told to the audit and to metrics is one and the same."""
    books = NoBooks()
    engine = ScriptedEngine()
    await Caller(ASKED).call(ready_pipeline(engine, books=books))
    engine.calls[0].usage.generated_tokens = 99
    assert books.accounts[0].usage.generated_tokens == 0


async def test_the_wait_in_the_queue_is_told_of_who_never_left_it() -> None:
    """From joining it to the end."""
    books, engine = NoBooks(), ScriptedEngine(hangs())
    pipeline = ready_pipeline(engine, books=books)
    caller = Caller(ASKED)
    pipeline.admission.close(shutting_down)
    await caller.call(pipeline)
    assert facts(books.accounts[0]) == (Outcome.REFUSED, "draining", 503)
    assert 0 < books.accounts[0].queue_seconds < books.accounts[0].total_seconds


async def test_time_to_the_first_token_counts_from_arrival() -> None:
    """The engine notes when it was, on the same clock."""
    loop = asyncio.get_running_loop()

    async def first(call: Call) -> Reply:
        async def events() -> AsyncGenerator[bytes]:
            call.usage.first_token_at = loop.time()
            yield event("a")
            yield DONE

        return Stream(events())

    account = await told(ScriptedEngine(first), Caller(STREAMED))
    assert 0 < account.first_token_seconds <= account.total_seconds


async def test_no_task_is_left_by_any_end() -> None:
    """Of whole replies, streams, callers who leave, deadlines and refusals alike."""
    before = asyncio.all_tasks()
    scripts = [
        says({}),
        streams(event("a"), DONE),
        streams(event("a"), ValueError("x")),
        raises(engine_lost()),
        hangs(),
    ]
    for script in scripts:
        for leaves in (False, True):
            stream = "streams" in getattr(script, "__qualname__", "")
            pipeline = ready_pipeline(ScriptedEngine(script), given=policy(deadline_seconds=0.05))
            caller = Caller(ASKED | {"stream": stream})
            task = caller.begin(pipeline)
            if leaves:
                await asyncio.sleep(0)
                caller.leave()
            await task
            assert (pipeline.admission.running, pipeline.life.in_flight) == (0, 0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
