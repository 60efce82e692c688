"""What is taken for a request is given back, and what it used is booked, once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from jubako import pipeline as pipeline_module
from jubako.errors import Busy, ClientGone, DeadlineExceeded, QuotaExhausted
from jubako.life import Life, engine_lost, shutting_down
from jubako.vocabulary import Budget, Outcome, Rate, Rates
from tests.budget_stores import Clock, StoreUnderTest
from tests.caller import Caller, NoBooks, NoBudgets, OneKey, ended, policy, ready_pipeline
from tests.scripted_engine import DONE, ScriptedEngine, event, hangs, says, streams

ASKED = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_used_is_booked_before_the_caller_hears_the_end(stream: bool) -> None:
    """Whole or streamed: who has the last byte may ask again at once."""
    budgets = NoBudgets()
    engine = ScriptedEngine(streams(event("a"), DONE) if stream else says({"a": 1}))
    engine.prompt_tokens = 7
    pipeline = ready_pipeline(engine, budgets=budgets)
    caller = Caller({**ASKED, "stream": stream, "max_tokens": 5})
    settled: list[bool] = []
    send = caller._send

    async def watching(message: Any) -> None:
        if message["type"] == "http.response.body" and (DONE in message["body"] or b'"a": 1' in message["body"]):
            settled.append(budgets.ended == [7] and pipeline.admission.running == 0)
        await send(message)

    caller._send = watching  # type: ignore[method-assign]
    await caller.call(pipeline)
    assert settled == [True]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_slow_store_of_budgets_does_not_hold_the_end_up(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has its reply, and the store is told when it answers."""
    monkeypatch.setattr(pipeline_module, "SETTLE_SECONDS", 0.01)
    store_answers = asyncio.Event()

    class SlowBudgets(NoBudgets):
        def end(self, tokens: int | None) -> Coroutine[Any, Any, None]:
            async def told() -> None:
                await store_answers.wait()
                super(SlowBudgets, self).end(tokens)

            return told()

    budgets = SlowBudgets()
    engine = ScriptedEngine(streams(event("a"), DONE) if stream else says({"a": 1}))
    engine.prompt_tokens = 7
    pipeline = ready_pipeline(engine, budgets=budgets)
    caller = await Caller({**ASKED, "stream": stream, "max_tokens": 5}).call(pipeline)
    assert caller.status == 200
    assert budgets.ended == []
    store_answers.set()
    await pipeline.settled()
    assert budgets.ended == [7]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_whole_reply_tells_of_the_limits_after_it_and_a_stream_before(stream: bool) -> None:
    """As the store told of them with the settlement; a refusal by the queue does so too."""

    class Settled(NoBudgets):
        def end(self, tokens: int | None) -> None:
            super().end(tokens)
            self.rates = Rates(tokens=Rate(100, 100 - (tokens or 0), 9.0))

    budgets = Settled()
    budgets.rates = Rates(tokens=Rate(100, 40, 9.0))
    engine = ScriptedEngine(streams(event("a"), DONE) if stream else says({"a": 1}))
    engine.prompt_tokens = 7
    pipeline = ready_pipeline(engine, budgets=budgets)
    caller = await Caller({**ASKED, "stream": stream}).call(pipeline)
    assert caller.headers["x-ratelimit-remaining-tokens"] == ("40" if stream else "93")
    assert [name.decode() for name, _ in caller.sent[0]["headers"]].count("x-ratelimit-remaining-tokens") == 1
    pipeline.admission.close(shutting_down)
    caller = await Caller({**ASKED, "stream": stream}).call(pipeline)
    assert (caller.status, caller.headers["x-ratelimit-remaining-tokens"]) == (503, "100")


class Unending(ScriptedEngine):
    """One whose requests do not end before `ends` is set, whatever is asked of it."""

    def __init__(self) -> None:
        super().__init__(hangs())
        self.ends = asyncio.Event()

    async def abort(self, request_id: str) -> None:
        await super().abort(request_id)
        await self.ends.wait()


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (shutting_down, (Outcome.FAILED, "draining", 503)),
        (engine_lost, (Outcome.FAILED, "engine_unavailable", 503)),
        (ClientGone, (Outcome.CANCELLED, "", 499)),
        (lambda: DeadlineExceeded("late"), (Outcome.DEADLINE, "deadline_exceeded", 504)),
        (None, (Outcome.FAILED, "draining", 503)),
    ],
    ids=["drain", "engine", "caller", "deadline", "none"],
)
async def test_a_request_that_outlives_the_end_is_on_record_once(cause: Any, told: tuple[Outcome, str, int]) -> None:
    """With what the budgets have of it, and why it ended; what becomes of it afterwards is not told again."""
    engine, books, budgets, life = Unending(), NoBooks(), NoBudgets(), Life()
    life.become_ready()
    pipeline = ready_pipeline(engine, budgets=budgets, books=books, life=life)
    caller = Caller(ASKED)
    task = caller.begin(pipeline)
    await engine.asked.wait()
    engine.calls[0].usage.prompt_tokens, engine.calls[0].usage.generated_tokens = 20, 3
    if cause is not None:
        life.interrupt_all(cause)
    assert not await life.settled(0.05)
    for _ in range(2):
        await pipeline.settled()
        (account,) = books.accounts
        assert (account.outcome, account.code, account.status) == told
        assert budgets.ended == [account.usage.tokens] == [23]
    engine.ends.set()
    await ended(task)
    assert len(books.accounts) == 1
    if cause is None:
        assert (caller.status, caller.error["code"]) == (503, "draining")


async def test_a_request_that_never_came_to_the_engine_is_on_record_at_the_end() -> None:
    """Nothing is reserved yet while its body is on its way."""
    books = NoBooks()
    pipeline = ready_pipeline(ScriptedEngine(), books=books)
    caller = Caller(body_follows=True)
    task = caller.begin(pipeline)
    while not pipeline.life.in_flight:
        await asyncio.sleep(0)
    await pipeline.settled()
    (account,) = books.accounts
    assert (account.outcome, account.code, account.usage.tokens) == (Outcome.FAILED, "draining", 0)
    await task
    assert caller.error["code"] == "draining"
    assert len(books.accounts) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_has_its_end_keeps_it_at_the_end(stream: bool) -> None:
    """Only its last bytes are on their way: its caller gets them."""
    books = NoBooks()
    pipeline = ready_pipeline(ScriptedEngine(streams(event("a"), DONE) if stream else says({})), books=books)
    ends: list[asyncio.Future[None]] = []
    books.on_record = lambda: ends.append(asyncio.ensure_future(pipeline.settled()))
    caller = await Caller({**ASKED, "stream": stream}).call(pipeline)
    await asyncio.gather(*ends)
    assert (caller.status, caller.ended) == (200, True)
    assert [account.outcome for account in books.accounts] == [Outcome.COMPLETED]
    assert b"error" not in caller.body


async def test_the_end_of_the_process_books_what_a_request_used_that_does_not_end(tmp_path: Path) -> None:
    """What was generated is not given back with the rest that the process held."""
    store, clock = StoreUnderTest("sqlite", tmp_path, None), Clock()
    given = policy(tenant_budget=Budget(tokens_per_day=200))
    budgets: Any = await store.open(clock)
    engine = Unending()
    engine.prompt_tokens = 20
    life = Life()
    life.become_ready()
    pipeline = ready_pipeline(engine, budgets=budgets, given=given, life=life)
    task = Caller({**ASKED, "max_tokens": 50}).begin(pipeline)
    await engine.asked.wait()
    engine.calls[0].usage.generated_tokens = 3
    life.interrupt_all(shutting_down)
    assert not await life.settled(0.05)
    await pipeline.settled()
    await budgets.close()
    after: Any = await store.open(clock)
    asker = OneKey(given).principal
    with pytest.raises(QuotaExhausted, match="23 are used"):
        await after.reserve(asker, 178)
    await after.reserve(asker, 177)
    engine.ends.set()
    await ended(task)
    await store.close()


async def test_a_prompt_longer_than_estimated_is_asked_for_again() -> None:
    """With the exact number and the same bound on output."""
    budgets, engine = NoBudgets(), ScriptedEngine()
    engine.prompt_tokens = 500
    await Caller({**ASKED, "max_tokens": 5}).call(ready_pipeline(engine, budgets=budgets))
    assert budgets.amended == [505]
    assert budgets.ended == [500]


async def test_a_refusal_takes_nothing() -> None:
    """By the budget, by the queue, by the engine before it began: nothing stays taken, and the engine is not asked."""
    budgets = NoBudgets()
    budgets.refusal = Busy("Too many requests.", retry_after_seconds=3)
    budgets.refusal.rates = Rates(Rate(3, 0, 20.0))
    engine = ScriptedEngine()
    caller = await Caller(ASKED).call(ready_pipeline(engine, budgets=budgets))
    assert (caller.status, caller.error["code"]) == (429, "rate_limit_exceeded")
    assert caller.headers["retry-after-ms"] == "3000"
    assert caller.headers["x-ratelimit-remaining-requests"] == "0"
    assert caller.headers["x-ratelimit-reset-requests"] == "20s"
    assert engine.calls == []

    budgets = NoBudgets()
    pipeline = ready_pipeline(engine, budgets=budgets)
    pipeline.admission.close(shutting_down)
    caller = await Caller(ASKED).call(pipeline)
    assert (caller.status, caller.error["code"]) == (503, "draining")
    assert budgets.ended == [None]
    assert engine.calls == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_leaves_gives_everything_back(stream: bool) -> None:
    """The place in the engine and the reservation; what the engine did is booked."""
    budgets, engine = NoBudgets(), ScriptedEngine(hangs())
    engine.prompt_tokens = 9
    pipeline = ready_pipeline(engine, budgets=budgets)
    caller = Caller({**ASKED, "stream": stream})
    task = caller.begin(pipeline)
    await engine.asked.wait()
    assert pipeline.admission.running == 1
    caller.leave()
    await ended(task)
    assert pipeline.admission.running == 0
    assert budgets.ended == [9]
