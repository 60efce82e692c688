"""The one statement of the order in which a request is dealt with.

    receive -> authenticate -> may it, is the server ready -> read, parse, limit -> reserve -> vet -> admit
            -> generate -> reply -> settle -> account

A caller who goes away at any step ends the steps before the next one starts: in the queue it leaves the queue, in the
engine it aborts the request. What was reserved is settled or given back, and a place in the engine is left, in the
function that took it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from jubako.boundary import deadlines, limits, problems, protocol, routes, sse
from jubako.boundary.exchange import Exchange
from jubako.engine.port import Engine, OnPrompt
from jubako.errors import ClientGone, DeadlineExceeded, InternalError, NotFound, Refusal
from jubako.gate.admission.admission import Admission
from jubako.gate.authentication import Authenticator, require
from jubako.gate.budgets.port import Budgets
from jubako.life import Lease, Life
from jubako.sections import StreamSettings
from jubako.telemetry import logs
from jubako.vocabulary import Call, Demand, Document, Outcome, Principal, Route, Scope

logger = logging.getLogger(__name__)
requests_log = logging.getLogger("jubako.requests")

SCOPES = {
    Route.MODELS: Scope.MODELS,
    Route.MODEL: Scope.MODELS,
    Route.CHAT: Scope.CHAT,
    Route.COMPLETIONS: Scope.COMPLETIONS,
}


@dataclass(slots=True)
class Pipeline:
    """The parts that one request passes, wired. `serve` brings the engine; until then nothing is asked of it."""

    authenticator: Authenticator
    life: Life
    budgets: Budgets
    stream: StreamSettings
    _engine: Engine | None = None
    _admission: Admission | None = None
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Of this process: caches live no longer than it does, and no other process shares them."""
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
        outcome, code, route = Outcome.COMPLETED, "", "unknown"
        with self.life.lease(exchange.request_id) as lease:
            try:
                exchange.require_sound_headers()
                match = routes.match(exchange.method, exchange.path)
                route = match.route.value
                principal = await self.authenticator.authenticate(exchange.header("authorization"))
                require(principal, SCOPES[match.route])
                self.life.require_ready()
                await self._dispatch(exchange, lease, match, principal)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last line of defence
                outcome, code = await self._end(exchange, lease, error)
        requests_log.info(
            "request=%s route=%s status=%d outcome=%s code=%s seconds=%.3f",
            exchange.request_id,
            route,
            exchange.status,
            outcome.value,
            code or "-",
            time.monotonic() - exchange.started_at,
        )

    async def _end(
        self, exchange: Exchange, lease: Lease, error: Exception | asyncio.CancelledError
    ) -> tuple[Outcome, str]:
        """Tell the caller, if one is left, why there is no answer or no more of it; the outcome and its code."""
        if lease.cause is not None:
            # It stands whatever became of the cancellation on its way: vLLM's serving objects make a refusal of it.
            _uncancel()
            refusal = lease.cause
            outcome = Outcome.DEADLINE if isinstance(refusal, DeadlineExceeded) else Outcome.FAILED
        elif isinstance(error, asyncio.CancelledError):
            raise error
        elif isinstance(error, Refusal):
            refusal = self.life.explain(error)
            outcome = _outcome(exchange, refusal)
        elif isinstance(error, ClientGone):
            refusal, outcome = error, Outcome.CANCELLED
        else:
            refusal, outcome = InternalError("The server had an internal error."), Outcome.FAILED
        if isinstance(refusal, ClientGone):
            await self._without_waiting(exchange.abandon(), lease)
            return Outcome.CANCELLED, ""
        if isinstance(refusal, InternalError):
            # Not with a traceback: it would quote the message, and with it perhaps a prompt.
            logger.error("request %s failed: %s", exchange.request_id, logs.place(error.__cause__ or error))
        await self._without_waiting(exchange.refuse(refusal), lease)
        return outcome, refusal.code

    async def _without_waiting(self, sending: Coroutine[Any, Any, None], lease: Lease) -> None:
        """Send the last words; a caller who does not take them is not waited for longer than for any other bytes."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.stream.stalled_reader_seconds):
                    await sending
        except asyncio.CancelledError:
            if lease.cause is None:
                raise
            _uncancel()

    def drain(self, cause: Callable[[], Refusal]) -> None:
        """Refuse what waits in the queue and what comes: another replica may have room now."""
        if self._admission is not None:
            self._admission.close(cause)

    async def settled(self) -> None:
        """Wait until every reservation that was ended is in the books."""
        while self._settling:
            await asyncio.wait(self._settling)

    async def _dispatch(self, exchange: Exchange, lease: Lease, match: routes.Match, principal: Principal) -> None:
        if match.route in {Route.MODELS, Route.MODEL}:
            await self._send(exchange, _models(await self.engine.models(), match, principal))
            return
        policy = principal.policy
        deadline_seconds = deadlines.seconds(exchange.header(deadlines.HEADER), policy.deadline_seconds)
        deadline_at = exchange.started_at + deadline_seconds
        late = DeadlineExceeded(f"The request took longer than its deadline of {deadline_seconds:g} seconds.")
        body = await exchange.body(
            limit_bytes=policy.limits.body_bytes,
            limit_seconds=min(policy.limits.body_seconds, deadline_seconds),
        )
        fields = protocol.parse(body, exchange.header("content-type"), policy.limits)
        del body  # the request may wait, and megabytes would wait with it
        salt = hmac.new(self._salt, principal.tenant.encode(), hashlib.sha256).hexdigest()
        fields, demand = limits.check(match.route, fields, policy.limits, media_salt=salt)
        demand = self._approved(demand, principal)
        call = Call(match.route, exchange.unique_id, fields, principal, demand, salt)
        timer = asyncio.get_running_loop().call_later(deadline_at - time.monotonic(), lease.interrupt, late)
        try:
            await self._generate(exchange, lease, call, deadline_at)
        finally:
            timer.cancel()

    def _approved(self, demand: Demand, principal: Principal) -> Demand:
        """`demand` with the name that will answer; raises `NotFound` for one that is not there or not approved."""
        name = demand.model or self.engine.names[0]
        if name not in self.engine.names or not principal.policy.approves(name):
            raise _no_model()
        return demand if demand.model else replace(demand, model=name)

    @asynccontextmanager
    async def _granted(self, exchange: Exchange, call: Call, deadline_at: float) -> AsyncIterator[OnPrompt]:
        """Hold what the call may use and a place in the engine; what could stall the engine is refused in between.

        At the end the place is left and what was used is booked; nothing is, if the engine never had the call.
        """
        reservation = await self.budgets.reserve(call.principal, call.demand.tokens)
        outputs = call.demand.tokens - call.demand.prompt_tokens

        async def on_prompt(prompt_tokens: int) -> None:
            if prompt_tokens > call.demand.prompt_tokens:
                await reservation.amend(prompt_tokens + outputs)

        try:
            exchange.add_headers(problems.rate_headers(reservation.rates))
            if call.demand.grammar:
                await self.engine.vet(call)
            ticket = await self.admission.admit(call.principal, call.demand, call.usage, deadline_at=deadline_at)
            completed = False
            try:
                yield on_prompt
                completed = True
            finally:
                ticket.leave(completed=completed)
        finally:
            used = call.usage.tokens
            ending = asyncio.ensure_future(reservation.settle(used) if used else reservation.release())
            self._settling.add(ending)
            ending.add_done_callback(self._settling.discard)
            # A task that is being cancelled still ends its reservation.
            await asyncio.shield(ending)

    async def _generate(self, exchange: Exchange, lease: Lease, call: Call, deadline_at: float) -> None:
        watch = asyncio.create_task(_interrupt_when_gone(exchange, lease), name="client-watch")
        try:
            if call.stream:
                await sse.send(
                    exchange,
                    self._events(exchange, call, deadline_at),
                    keep_alive_seconds=self.stream.keep_alive_seconds,
                    stalled_reader_seconds=self.stream.stalled_reader_seconds,
                    on_stalled_reader=lambda: lease.interrupt(ClientGone()),
                )
            else:
                await self._send(exchange, await self._answer(exchange, call, deadline_at))
        finally:
            watch.cancel()
            if not exchange.reply_ended:
                # Whatever ended this early, the engine must not go on for nobody.
                await self.engine.abort(call.request_id)

    async def _answer(self, exchange: Exchange, call: Call, deadline_at: float) -> Document:
        """The whole reply, with everything it held given back: its caller may ask again at once."""
        async with self._granted(exchange, call, deadline_at) as on_prompt:
            reply = await self.engine.answer(call, on_prompt)
        if not isinstance(reply, Document):
            raise InternalError("The engine gave a stream that was not asked for.")
        return reply

    async def _events(self, exchange: Exchange, call: Call, deadline_at: float) -> AsyncGenerator[bytes]:
        """The reply's events. All waiting is done inside, so that keep-alive covers the queue and rendering too.

        The last event is held back until everything is given back, as for a whole reply.
        """
        async with self._granted(exchange, call, deadline_at) as on_prompt:
            reply = await self.engine.answer(call, on_prompt)
            if isinstance(reply, Document):
                raise InternalError("The engine gave no stream.")
            async with aclosing(reply.events) as events:
                async for event in events:
                    if event != sse.DONE:
                        yield event
        yield sse.DONE

    async def _send(self, exchange: Exchange, document: Document) -> None:
        """Send a whole reply; a reader who does not take it in time is gone."""
        try:
            async with asyncio.timeout(self.stream.stalled_reader_seconds):
                await exchange.document(document)
        except TimeoutError:
            raise ClientGone from None


def _models(cards: list[dict[str, Any]], match: routes.Match, principal: Principal) -> Document:
    """Every name that the principal may use, or the one of the path."""
    approved = [card for card in cards if principal.policy.approves(card["id"])]
    if match.route is Route.MODELS:
        return _json({"object": "list", "data": approved})
    for card in approved:
        if card["id"] == match.model:
            return _json(card)
    raise _no_model()


def _json(value: Any) -> Document:
    return Document(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def _no_model() -> NotFound:
    return NotFound("The model does not exist. GET /v1/models lists the names.", code="model_not_found", param="model")


async def _interrupt_when_gone(exchange: Exchange, lease: Lease) -> None:
    await exchange.gone()
    # After the reply's end, that is how an ASGI server says so: nothing is left to interrupt.
    if not exchange.reply_ended:
        lease.interrupt(ClientGone())


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _outcome(exchange: Exchange, refusal: Refusal) -> Outcome:
    if refusal.status == 504:  # noqa: PLR2004 - the status is the definition
        return Outcome.DEADLINE
    if isinstance(refusal, InternalError):
        return Outcome.FAILED
    return Outcome.REFUSED if refusal.status < 500 or not exchange.reply_started else Outcome.FAILED  # noqa: PLR2004
