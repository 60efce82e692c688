"""The one statement of the order in which a request is dealt with.

    receive -> authenticate -> ready? -> read and parse -> generate -> reply -> account

A caller who goes away at any step ends the steps before the next one starts; in the engine that aborts the request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from jubako.boundary import protocol, routes, sse
from jubako.boundary.exchange import Exchange
from jubako.engine.port import Engine
from jubako.errors import ClientGone, DeadlineExceeded, InternalError, Refusal
from jubako.gate.authentication import KeyAuthenticator
from jubako.life import Lease, Life
from jubako.settings import LimitSettings, StreamSettings
from jubako.telemetry import logs
from jubako.vocabulary import Call, Document, Outcome, Principal, Route

logger = logging.getLogger(__name__)
requests_log = logging.getLogger("jubako.requests")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts that one request passes, wired."""

    authenticator: KeyAuthenticator
    life: Life
    engine: Engine
    limits: LimitSettings
    stream: StreamSettings

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one exchange; never raises but when the process itself cancels the task."""
        outcome, code, route = Outcome.COMPLETED, "", "unknown"
        with self.life.lease(exchange.request_id) as lease:
            try:
                match = routes.match(exchange.method, exchange.path)
                route = match.route.value
                principal = self.authenticator.authenticate(exchange.header("authorization"))
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

    async def _dispatch(self, exchange: Exchange, lease: Lease, match: routes.Match, principal: Principal) -> None:
        if match.route is Route.MODELS:
            await self._send(exchange, await self.engine.models())
        elif match.route is Route.MODEL:
            await self._send(exchange, await self.engine.model(match.model))
        else:
            body = await exchange.body(limit_bytes=self.limits.body_bytes, limit_seconds=self.limits.body_seconds)
            fields = protocol.parse(body, exchange.header("content-type"))
            await self._generate(exchange, lease, Call(match.route, exchange.unique_id, fields, principal))

    async def _generate(self, exchange: Exchange, lease: Lease, call: Call) -> None:
        watch = asyncio.create_task(_interrupt_when_gone(exchange, lease), name="client-watch")
        try:
            if call.stream:
                await sse.send(
                    exchange,
                    self._events(call),
                    keep_alive_seconds=self.stream.keep_alive_seconds,
                    stalled_reader_seconds=self.stream.stalled_reader_seconds,
                    on_stalled_reader=lambda: lease.interrupt(ClientGone()),
                )
            else:
                await self._send(exchange, await self._answer(call, lease))
        finally:
            watch.cancel()
            if not exchange.reply_ended:
                # Whatever ended this early, the engine must not go on for nobody.
                await self.engine.abort(call.request_id)

    async def _answer(self, call: Call, lease: Lease) -> Document:
        """The whole reply, in time. The lease is interrupted, not the wait: vLLM swallows a plain cancellation."""
        late = DeadlineExceeded(f"The reply took longer than {self.limits.reply_seconds:g} seconds. Stream it instead.")
        timer = asyncio.get_running_loop().call_later(self.limits.reply_seconds, lease.interrupt, late)
        try:
            reply = await self.engine.answer(call)
        finally:
            timer.cancel()
        if not isinstance(reply, Document):
            raise InternalError("The engine gave a stream that was not asked for.")
        return reply

    async def _send(self, exchange: Exchange, document: Document) -> None:
        """Send a whole reply; a reader who does not take it in time is gone."""
        try:
            async with asyncio.timeout(self.stream.stalled_reader_seconds):
                await exchange.document(document)
        except TimeoutError:
            raise ClientGone from None

    async def _events(self, call: Call) -> AsyncGenerator[bytes]:
        """The reply's events; the engine's answer is awaited inside, so that keep-alive covers rendering too."""
        reply = await self.engine.answer(call)
        if isinstance(reply, Document):
            raise InternalError("The engine gave no stream.")
        async with aclosing(reply.events) as events:
            async for event in events:
                yield event


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
