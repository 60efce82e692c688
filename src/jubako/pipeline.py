"""The one statement of the order in which a request is dealt with.

    receive -> authenticate -> may it, is the server ready -> read, parse, limit -> reserve -> vet -> admit
            -> generate -> leave, settle -> account -> the reply's last bytes

A caller who goes away at any step ends the steps before the next one starts: in the queue it leaves the queue, in the
engine it aborts the request. What was reserved is settled or given back, and a place in the engine is left, in the
function that took it. Every request is told once, at its end: a caller who has the end of a reply is on record.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from jubako.accounts import Accounts, Entry
from jubako.boundary import deadlines, limits, models, problems, protocol, routes, sse
from jubako.boundary.bodies import Bodies
from jubako.boundary.exchange import CLIENT_CLOSED, Exchange
from jubako.engine.port import Engine, OnPrompt
from jubako.errors import BodyTimeout, ClientGone, DeadlineExceeded, InternalError, Refusal
from jubako.gate.admission.admission import Admission
from jubako.gate.authentication import Authenticator, require
from jubako.gate.budgets.port import Budgets, Reservation
from jubako.life import Lease, Life, shutting_down
from jubako.sections import StreamSettings
from jubako.telemetry import logs
from jubako.vocabulary import Call, Demand, Document, Outcome, Principal, Route, Scope, Usage

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0
"""The longest that the end of a reply waits for the budgets' store. It is told all the same."""
SCOPES = {
    Route.MODELS: Scope.MODELS,
    Route.MODEL: Scope.MODELS,
    Route.CHAT: Scope.CHAT,
    Route.COMPLETIONS: Scope.COMPLETIONS,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Passage:
    """One request on its way: what the caller hears, what can interrupt it, what will be told of it."""

    exchange: Exchange
    lease: Lease
    entry: Entry


@dataclass(frozen=True, slots=True)
class _Grant:
    """What a call was let in with: its exact prompt is told to one, and the other leaves its place in the engine."""

    on_prompt: OnPrompt
    leave: Callable[[], None]


@dataclass(slots=True)
class Pipeline:
    """The parts that one request passes, wired. `serve` brings the engine; until then nothing is asked of it."""

    authenticator: Authenticator
    life: Life
    budgets: Budgets
    accounts: Accounts
    stream: StreamSettings
    bodies: Bodies
    _engine: Engine | None = None
    _admission: Admission | None = None
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Of this process: caches live no longer than it does, and no other process shares them."""
    _reserved: dict[str, tuple[Reservation, Usage]] = field(default_factory=dict)
    """Of requests that are under way, by their id in the engine, with what they used so far."""
    _under_way: set[_Passage] = field(default_factory=set)
    """Every request from its first step to its last byte."""
    _settling: set[asyncio.Future[None]] = field(default_factory=set)

    def serve(self, engine: Engine, admission: Admission) -> None:
        """Answer with `engine`, behind `admission`, from now on."""
        self._engine = engine
        self._admission = admission
        engine.listen(admission.on_step)

    @property
    def engine(self) -> Engine:
        """The engine; the phase of the server's life says whether there is one."""
        if self._engine is None:
            raise InternalError("The server has no engine yet.")
        return self._engine

    @property
    def admission(self) -> Admission:
        """The queue in front of the engine."""
        if self._admission is None:
            raise InternalError("The server has no engine yet.")
        return self._admission

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one exchange; never raises but when the process itself cancels the task."""
        with logs.request(exchange.request_id), self.life.lease(exchange.request_id) as lease:
            entry = Entry(exchange.request_id, exchange.started_at, exchange.header("traceparent"))
            passage = _Passage(exchange, lease, entry)
            self._under_way.add(passage)
            exchange.bound_reader(self.stream.stalled_reader_seconds)
            try:
                exchange.require_sound_headers()
                match = routes.match(exchange.method, exchange.path)
                entry.route = match.route.value
                principal = await self.authenticator.authenticate(exchange.header("authorization"))
                entry.principal = principal
                require(principal, SCOPES[match.route])
                self.life.require_ready()
                self.accounts.require_healthy()
                await self._dispatch(passage, match, principal)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last line of defence
                await self._end(passage, error)
            finally:
                self._under_way.discard(passage)

    def _account(self, passage: _Passage, outcome: Outcome, code: str = "", *, status: int = 200) -> None:
        """Put the end on record, unless one is; raises `Unavailable` if that cannot be done.

        `status` is what is about to be sent if nothing was sent yet. The reply's last bytes follow at once; of what
        could still interrupt them only a caller who is gone does.
        """
        passage.lease.conclude()
        self.accounts.tell(passage.entry, outcome, code, status, sent_status=passage.exchange.status)

    def _account_for(self, passage: _Passage, refusal: Refusal | ClientGone) -> None:
        """Put an end on record that is not the reply's own; raises `Unavailable` if that cannot be done."""
        if isinstance(refusal, ClientGone):
            self._account(passage, Outcome.CANCELLED, status=CLIENT_CLOSED)
        else:
            self._account(passage, _outcome(passage, refusal), refusal.code, status=refusal.status)

    def _completed(self, passage: _Passage) -> None:
        self._account(passage, Outcome.LENGTH if passage.entry.usage.cut else Outcome.COMPLETED)

    async def _end(self, passage: _Passage, error: Exception | asyncio.CancelledError) -> None:
        """Account for a request without an answer, or without all of it, and tell the caller, if one is left, why."""
        exchange, lease = passage.exchange, passage.lease
        refusal: Refusal | ClientGone
        if lease.cause is not None:
            # It stands whatever became of the cancellation on its way: vLLM's serving objects make a refusal of it.
            _uncancel()
            refusal = lease.cause
        elif isinstance(error, asyncio.CancelledError):
            with suppress(Refusal):
                self._account(passage, Outcome.FAILED, InternalError.default_code, status=InternalError.status)
            raise error
        elif isinstance(error, Refusal):
            refusal = self.life.explain(error)
        elif isinstance(error, ClientGone):
            refusal = error
        else:
            refusal = InternalError("The server had an internal error.")
        if isinstance(refusal, ClientGone):
            with suppress(Refusal):
                self._account_for(passage, refusal)
            await self._without_waiting(exchange.abandon(), passage)
            return
        if isinstance(refusal, InternalError):
            # Not with a traceback: it would quote the message, and with it perhaps a prompt.
            logger.error("request %s failed: %s", exchange.request_id, logs.place(error.__cause__ or error))
        try:
            self._account_for(passage, refusal)
        except Refusal as unrecorded:
            refusal = unrecorded
        await self._without_waiting(exchange.refuse(refusal), passage)

    async def _without_waiting(self, sending: Coroutine[Any, Any, None], passage: _Passage) -> None:
        """Send the last words; a caller who does not take them is not waited for longer than for any other bytes."""
        try:
            try:
                async with asyncio.timeout(self.stream.stalled_reader_seconds):
                    await sending
            except TimeoutError:
                await passage.exchange.abandon()
        except asyncio.CancelledError:
            if passage.lease.cause is None:
                raise
            _uncancel()

    def drain(self, cause: Callable[[], Refusal]) -> None:
        """Refuse what waits in the queue and what comes: another replica may have room now."""
        if self._admission is not None:
            self._admission.close(cause)

    async def settled(self) -> None:
        """End every reservation, put every request on record, and wait until the budgets' store has the former.

        For the end of the process: a request that is under way all the same is booked and told with what it used so
        far, as far as that is known. Nothing that was generated is given back.
        """
        for request_id in list(self._reserved):
            try:
                self._settle(request_id)
            except Exception as error:  # noqa: BLE001 - the others are settled all the same
                logger.error("request %s was not settled: %s", request_id, logs.place(error))
        for passage in self._under_way:
            passage.lease.interrupt(shutting_down())
            if passage.lease.cause is not None:  # else it has had its end, and only its last bytes are on their way
                with suppress(Refusal):
                    self._account_for(passage, passage.lease.cause)
        while self._settling:
            await asyncio.wait(self._settling)

    def _settle(self, request_id: str) -> asyncio.Task[None] | None:
        """End a reservation: what is left to wait for. A request that never used anything gives all of it back."""
        reservation, usage = self._reserved.pop(request_id)
        told = reservation.end(usage.tokens or None)
        if told is None:
            return None
        ending = asyncio.create_task(told, name="budgets-end")
        self._settling.add(ending)
        ending.add_done_callback(self._settling.discard)
        return ending

    async def _dispatch(self, passage: _Passage, match: routes.Match, principal: Principal) -> None:
        exchange = passage.exchange
        if match.route in {Route.MODELS, Route.MODEL}:
            await self._reply(passage, models.document(await self.engine.models(), match, principal))
            return
        policy = principal.policy
        deadline_seconds = deadlines.seconds(exchange.header(deadlines.HEADER), policy.deadline_seconds)
        deadline_at = exchange.started_at + deadline_seconds
        late = DeadlineExceeded(f"The request took longer than its deadline of {deadline_seconds:g} seconds.")
        fields = await self._fields(exchange, principal, deadline_at, late)
        salt = hmac.new(self._salt, principal.tenant.encode(), hashlib.sha256).hexdigest()
        fields, demand = limits.check(match.route, fields, policy.limits, media_salt=salt)
        demand = self._approved(demand, principal)
        call = Call(match.route, exchange.unique_id, fields, principal, demand, salt)
        entry = passage.entry
        entry.alias, entry.stream, entry.usage = demand.model, call.stream, call.usage
        timer = asyncio.get_running_loop().call_later(deadline_at - time.monotonic(), passage.lease.interrupt, late)
        try:
            await self._generate(passage, call, deadline_at)
        finally:
            timer.cancel()

    async def _fields(
        self, exchange: Exchange, principal: Principal, deadline_at: float, late: DeadlineExceeded
    ) -> dict[str, Any]:
        """The body, read and parsed. Its bytes are held no longer: the request may wait, and they would with it."""
        limits = principal.policy.limits
        left_seconds = deadline_at - time.monotonic()
        with self.bodies.room(principal.tenant) as room:
            try:
                body = await exchange.body(
                    limit_bytes=limits.body_bytes,
                    limit_seconds=min(limits.body_seconds, left_seconds),
                    require_room=room.require,
                )
            except BodyTimeout:
                if left_seconds < limits.body_seconds:
                    raise late from None
                raise
            return protocol.parse(body, exchange.header("content-type"), limits)

    def _approved(self, demand: Demand, principal: Principal) -> Demand:
        """`demand` with the name that will answer; raises `NotFound` for one that is not there or not approved."""
        name = demand.model or self.engine.names[0]
        if name not in self.engine.names or not principal.policy.approves(name):
            raise models.unknown()
        return demand if demand.model else replace(demand, model=name)

    @asynccontextmanager
    async def _granted(self, passage: _Passage, call: Call, deadline_at: float) -> AsyncIterator[_Grant]:
        """Hold what the call may use and a place in the engine; what could stall the engine is refused in between.

        At the end the engine has stopped, the place is left and what was used is settled; nothing is, if the engine
        never had the call.
        """
        reservation = await self.budgets.reserve(call.principal, call.demand.tokens)
        self._reserved[call.request_id] = reservation, call.usage
        outputs = call.demand.tokens - call.demand.prompt_tokens

        async def on_prompt(prompt_tokens: int) -> None:
            if prompt_tokens > call.demand.prompt_tokens:
                await reservation.amend(prompt_tokens + outputs)

        try:
            # A reply that begins at its end tells of the limits as they are then; a stream, as it begins.
            passage.exchange.add_headers(lambda: problems.rate_headers(reservation.rates))
            if call.demand.grammar:
                await self.engine.vet(call)
            passage.entry.queued_at = time.monotonic()
            ticket = await self.admission.admit(call.principal, call.demand, call.usage, deadline_at=deadline_at)
            passage.entry.admitted_at = passage.entry.queued_at + ticket.queued_seconds
            completed = False
            try:
                yield _Grant(on_prompt, ticket.leave)
                completed = True
            except BaseException:
                # Whatever ended this early, the engine must not go on for nobody; what it did is counted then.
                await self.engine.abort(call.request_id)
                raise
            finally:
                ticket.leave(completed=completed)
        finally:
            if call.request_id in self._reserved and (ending := self._settle(call.request_id)) is not None:
                # A task that is being cancelled still ends its reservation, and a slow store does not hold a reply up.
                await asyncio.wait({ending}, timeout=SETTLE_SECONDS)

    async def _generate(self, passage: _Passage, call: Call, deadline_at: float) -> None:
        exchange, lease = passage.exchange, passage.lease
        watch = asyncio.create_task(_interrupt_when_gone(exchange, lease), name="client-watch")
        try:
            if call.stream:
                await sse.send(
                    exchange,
                    self._events(passage, call, deadline_at),
                    keep_alive_seconds=self.stream.keep_alive_seconds,
                    stalled_reader_seconds=self.stream.stalled_reader_seconds,
                    on_stalled_reader=lambda: lease.interrupt(ClientGone()),
                )
            else:
                await self._reply(passage, await self._answer(passage, call, deadline_at))
        finally:
            watch.cancel()

    async def _answer(self, passage: _Passage, call: Call, deadline_at: float) -> Document:
        """The whole reply, with everything it held given back: its caller may ask again at once."""
        async with self._granted(passage, call, deadline_at) as grant:
            reply = await self.engine.answer(call, grant.on_prompt, grant.leave)
            if not isinstance(reply, Document):
                raise InternalError("The engine gave a stream that was not asked for.")
            return reply

    async def _events(self, passage: _Passage, call: Call, deadline_at: float) -> AsyncGenerator[bytes]:
        """The reply's events. All waiting is done inside, so that keep-alive covers the queue and rendering too.

        The last event is held back until everything is given back and on record, as for a whole reply.
        """
        async with self._granted(passage, call, deadline_at) as grant:
            # The place is left once the engine is done: one who reads slowly keeps nobody waiting.
            reply = await self.engine.answer(call, grant.on_prompt, grant.leave)
            if isinstance(reply, Document):
                raise InternalError("The engine gave no stream.")
            if reply.through is not None:
                reply.through(passage.exchange.offer)
            async with aclosing(reply.events) as events:
                async for event in events:
                    if event != sse.DONE:
                        yield event
        self._completed(passage)
        yield sse.DONE

    async def _reply(self, passage: _Passage, document: Document) -> None:
        """Account for a whole reply and send it; a reader who does not take it in time is gone."""
        self._completed(passage)
        try:
            async with asyncio.timeout(self.stream.stalled_reader_seconds):
                await passage.exchange.document(document)
        except TimeoutError:
            raise ClientGone from None


async def _interrupt_when_gone(exchange: Exchange, lease: Lease) -> None:
    await exchange.gone()
    # After the reply's end, that is how an ASGI server says so: nothing is left to interrupt.
    if not exchange.reply_ended:
        lease.interrupt(ClientGone())


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _outcome(passage: _Passage, refusal: Refusal) -> Outcome:
    if isinstance(refusal, DeadlineExceeded):
        return Outcome.DEADLINE
    owed = passage.lease.cause is not None or passage.entry.admitted_at > 0
    if isinstance(refusal, InternalError) or (owed and refusal.status >= InternalError.status):
        return Outcome.FAILED
    return Outcome.REFUSED
