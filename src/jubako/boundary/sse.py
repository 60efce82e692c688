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
    heartbeat = asyncio.create_task(
        _heartbeat(exchange, keep_alive_seconds, stalled_reader_seconds, on_stalled_reader), name="sse-heartbeat"
    )
    try:
        async with aclosing(events):
            async for event in events:
                if not exchange.reply_started:
                    await exchange.open_stream()
                await exchange.event(event)
        await exchange.close_stream()
    finally:
        heartbeat.cancel()


async def _heartbeat(
    exchange: Exchange, keep_alive_seconds: float, stalled_reader_seconds: float, on_stalled_reader: Callable[[], None]
) -> None:
    """One timer a stream, not one a token: what a token costs is two assignments in `Exchange.event`."""
    pause = min(keep_alive_seconds, stalled_reader_seconds)
    while True:
        await asyncio.sleep(pause)
        now = time.monotonic()
        if exchange.writing_since:
            blocked = now - exchange.writing_since
            if blocked >= stalled_reader_seconds:
                on_stalled_reader()
                return
            pause = min(keep_alive_seconds, stalled_reader_seconds - blocked)
            continue
        silent = now - exchange.last_write_at
        if silent >= keep_alive_seconds:
            try:
                # This task is the only one that watches, so nobody would notice it blocked in a write of its own.
                async with asyncio.timeout(stalled_reader_seconds):
                    await exchange.open_stream()
                    await exchange.event(KEEP_ALIVE)
            except TimeoutError:
                on_stalled_reader()
                return
            silent = 0.0
        pause = min(keep_alive_seconds - silent, stalled_reader_seconds)
