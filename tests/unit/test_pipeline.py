"""The order of a request's steps, and what each way to end tells the caller, the engine and the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jubako import pipeline as pipeline_module
from jubako.errors import Busy, ClientGone, DeadlineExceeded, InternalError, InvalidRequest, QuotaExhausted, Refusal
from jubako.life import Life, engine_lost, shutting_down
from jubako.vocabulary import Budget, Outcome, Rate, Rates, Scope
from tests.budget_stores import Clock, StoreUnderTest
from tests.caller import CHAT, Caller, NoBooks, NoBudgets, OneKey, ended, policy, ready_pipeline
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


async def test_the_engine_is_asked_what_the_caller_asked() -> None:
    """The body arrives as it was sent; the reply goes out as the engine wrote it."""
    engine = ScriptedEngine(says({"answer": 1}))
    caller = await Caller(ASKED).call(ready_pipeline(engine))
    assert (caller.status, caller.body) == (200, b'{"answer": 1}')
    assert engine.calls[0].body == ASKED
    assert engine.calls[0].principal.tenant == "default"
    assert engine.aborted == []


async def test_two_requests_of_one_id_are_two_to_the_engine() -> None:
    """The caller's id comes back to it, and the engine's own id is nobody else's."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine)
    callers = [await Caller(ASKED, headers={"x-request-id": "mine"}).call(pipeline) for _ in range(2)]
    assert {caller.headers["x-request-id"] for caller in callers} == {"mine"}
    ids = {call.request_id for call in engine.calls}
    assert len(ids) == 2
    assert all(one.startswith("mine-") for one in ids)


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


async def test_a_caller_who_leaves_while_sending_never_reaches_the_engine() -> None:
    """Half a body is no request."""
    engine = ScriptedEngine()
    caller = Caller(body_follows=True)
    caller.send_body(b'{"mess', more=True)
    caller.leave()
    await caller.call(ready_pipeline(engine))
    assert engine.calls == []
    assert caller.sent == []


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


@pytest.mark.parametrize(
    ("phase", "code"), [("starting", "not_ready"), ("draining", "draining"), ("failed", "engine_unavailable")]
)
async def test_only_a_ready_server_takes_requests(phase: str, code: str) -> None:
    """Each other phase has its own code, and all say that another try may do."""
    life = Life()
    if phase != "starting":
        life.become_ready()
        life.begin_draining() if phase == "draining" else life.fail("the engine died")
    engine = ScriptedEngine()
    caller = await Caller(ASKED).call(ready_pipeline(engine, life=life))
    assert (caller.status, caller.error["code"]) == (503, code)
    assert caller.error["type"] == "service_unavailable_error"
    assert caller.headers["x-should-retry"] == "true"
    assert int(caller.headers["retry-after"]) >= 1
    assert int(caller.headers["retry-after-ms"]) >= 1
    assert engine.calls == []


async def test_a_stranger_learns_nothing_of_the_server_s_phase() -> None:
    """Authentication comes before readiness, and a path before authentication."""
    life = Life()
    stranger = {"authorization": "Bearer somebody-else"}
    pipeline = ready_pipeline(ScriptedEngine(), life=life)
    assert (await Caller(ASKED, headers=stranger).call(pipeline)).status == 401
    assert (await Caller(ASKED, headers=stranger, path="/nope").call(pipeline)).status == 404


async def test_the_body_of_a_stranger_is_not_read() -> None:
    """A refusal waits for nothing, and the connection is not kept for the rest of the body."""
    caller = Caller(body_follows=True, headers={"authorization": "Bearer wrong", "content-length": "900"})
    await caller.call(ready_pipeline(ScriptedEngine()))
    assert caller.status == 401
    assert caller.headers["connection"] == "close"


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


async def test_models_need_no_body() -> None:
    """The list and one model come from the engine; a name that it does not know is its refusal."""
    pipeline = ready_pipeline(ScriptedEngine())
    listed, shown, unknown = [
        await Caller(b"", method="GET", path=f"/v1/models{name}").call(pipeline) for name in ("", "/scripted", "/gpt-4")
    ]
    assert (listed.status, shown.status, unknown.status) == (200, 200, 404)
    assert (unknown.error["code"], unknown.error["param"]) == ("model_not_found", "model")


def _classes(parent: type[Refusal]) -> list[type[Refusal]]:
    return [parent, *(inner for child in parent.__subclasses__() for inner in _classes(child))]


@pytest.mark.parametrize("refusal", sorted(_classes(Refusal), key=str))
async def test_every_refusal_says_whether_to_retry(refusal: type[Refusal]) -> None:
    """`x-should-retry` is always there; when it says yes, so is how long to wait."""
    options: dict[str, Any] = {"allow": "GET"} if refusal.__name__ == "MethodNotAllowed" else {}
    error = refusal("no", **options)
    caller = await Caller(ASKED, path=CHAT).call(ready_pipeline(ScriptedEngine(raises(error))))
    assert caller.status == refusal.status
    assert caller.headers["x-should-retry"] == ("true" if refusal.retry else "false")
    assert ("retry-after" in caller.headers) is ("retry-after-ms" in caller.headers) is refusal.retry
    assert set(caller.error) == {"message", "type", "param", "code"}
    assert isinstance(caller.error["code"], str)


# -- the gate: what is taken is given back, and what was used is booked, whatever happens


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


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_lowered_by_the_caller_ends_either_kind(stream: bool) -> None:
    """A whole reply with 504, a stream with an event; and the engine stops."""
    engine = ScriptedEngine(streams(event("a"), asyncio.Event()) if stream else hangs())
    headers = {"x-request-timeout-ms": "50"}
    caller = await Caller({**ASKED, "stream": stream}, headers=headers).call(ready_pipeline(engine))
    assert caller.status == (200 if stream else 504)
    assert caller.error["code"] == "deadline_exceeded"
    assert engine.aborted == [engine.calls[0].request_id]


async def test_only_what_constrains_a_reply_is_vetted() -> None:
    """Before a place in the engine is taken."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine)
    await Caller(ASKED).call(pipeline)
    assert engine.vetted == []
    await Caller({**ASKED, "response_format": {"type": "json_object"}}).call(pipeline)
    assert [call.request_id for call in engine.vetted] == [engine.calls[1].request_id]


async def test_each_tenant_has_a_salt_of_its_own() -> None:
    """The same for all its requests, and nobody else's; no caller sees or sets it."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine)
    for tenant in ("default", "default", "another"):
        pipeline.authenticator.principal = replace(pipeline.authenticator.principal, tenant=tenant)  # type: ignore[attr-defined]
        await Caller(ASKED).call(pipeline)
    salts = [call.cache_salt for call in engine.calls]
    assert salts[0] == salts[1] != salts[2]
    assert all(len(salt) == 64 for salt in salts)


async def test_a_name_that_is_not_approved_is_one_that_is_not_there() -> None:
    """In the list, by itself, and to be asked."""
    engine = ScriptedEngine()
    pipeline = ready_pipeline(engine, given=policy(models=frozenset()))
    listed = await Caller(path="/v1/models", method="GET").call(pipeline)
    assert b'"data":[]' in listed.body
    for caller in (Caller(path="/v1/models/scripted", method="GET"), Caller(ASKED)):
        await caller.call(pipeline)
        assert (caller.status, caller.error["code"]) == (404, "model_not_found")
    assert engine.calls == []


async def test_a_scope_that_is_missing_is_told() -> None:
    """Before the body is read."""
    pipeline = ready_pipeline(ScriptedEngine(), given=policy(scopes=frozenset({Scope.MODELS})))
    caller = await Caller(body_follows=True).call(pipeline)
    assert (caller.status, caller.error["code"]) == (403, "scope_missing")
