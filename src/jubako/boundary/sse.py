"""The stream contract: one reply as server-sent events, under a slow model and a slow reader.

- The status line waits for the first event, so an error that shows there keeps its status; if the model is silent
  longer than the keep-alive interval, the status line goes out with a comment and an error can then only be an event.
- Comments keep idle connections open. Nothing is sent but whole events and comments.
- A reader who takes nothing for `stalled_reader_seconds` is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from jubako.boundary.exchange import Exchange

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
STOOD_STILL_SECONDS = 1.0
"""A timer that fires so much too late tells of a pause of this process, which is not held against the reader."""


async def send(
    exchange: Exchange,
    events: AsyncGenerator[bytes],
    *,
    keep_alive_seconds: float,
    stalled_reader_seconds: float,
    on_stalled_reader: Callable[[], None],
) -> None:
    """Send `events` as the reply.

    Errors of `events` pass through; whoever called tells the caller. `on_stalled_reader` is called once from the loop,
    and is expected to cancel the task that runs this.
    """
    heartbeat = _Heartbeat(exchange, keep_alive_seconds, stalled_reader_seconds, on_stalled_reader)
    try:
        async with aclosing(events):
            async for event in events:
                if not exchange.reply_started:
                    await exchange.open_stream()
                await exchange.event(event)
        await exchange.close_stream()
    finally:
        heartbeat.stop()


class _Heartbeat:
    """One timer a stream, not one a token: what a token costs is two assignments in `Exchange.event`.

    A task there is only while a comment is sent.
    """

    def __init__(
        self,
        exchange: Exchange,
        keep_alive_seconds: float,
        stalled_reader_seconds: float,
        on_stalled_reader: Callable[[], None],
    ) -> None:
        self._exchange = exchange
        self._keep_alive_seconds = keep_alive_seconds
        self._stalled_reader_seconds = stalled_reader_seconds
        self._on_stalled_reader = on_stalled_reader
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(min(keep_alive_seconds, stalled_reader_seconds), self._look)
        self._judged_from = 0.0
        self._commenting: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """The stream has ended."""
        self._timer.cancel()
        if self._commenting is not None:
            self._commenting.cancel()

    def _look(self) -> None:
        exchange, now = self._exchange, time.monotonic()
        if self._loop.time() - self._timer.when() > STOOD_STILL_SECONDS:
            # This process stood still: what the reader took meanwhile has yet to be seen.
            self._judged_from = now
        if exchange.writing_since:
            blocked = now - max(exchange.writing_since, self._judged_from)
            if blocked < self._stalled_reader_seconds:
                self._again(self._stalled_reader_seconds - blocked)
            else:
                self._on_stalled_reader()
            return
        silent = now - exchange.last_write_at
        if silent >= self._keep_alive_seconds:
            self._commenting = self._loop.create_task(self._comment(), name="sse-keep-alive")
        else:
            self._again(self._keep_alive_seconds - silent)

    def _again(self, seconds: float) -> None:
        pause = min(seconds, self._keep_alive_seconds, self._stalled_reader_seconds)
        self._timer = self._loop.call_later(pause, self._look)

    async def _comment(self) -> None:
        begun = time.monotonic()
        try:
            # Nothing watches while this is sent, so nobody would notice it blocked in a write of its own.
            async with asyncio.timeout(self._stalled_reader_seconds):
                await self._exchange.open_stream()
                await self._exchange.event(KEEP_ALIVE)
        except TimeoutError:
            if time.monotonic() - begun - self._stalled_reader_seconds > STOOD_STILL_SECONDS:
                self._again(0.0)
            else:
                self._on_stalled_reader()
        else:
            self._again(self._keep_alive_seconds)
