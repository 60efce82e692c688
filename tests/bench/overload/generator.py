"""The load: streamed completions sent when they are due, whatever has become of those before.

One process, one event loop, one connection a request, loopback only. It owns sockets, schedules and the stage's clock;
it knows nothing of which server answers or what a good answer is.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from tests.bench.overload.records import Outcome, Record
from tests.bench.overload.wire import ReplyReader, WireFault

HOST = "127.0.0.1"
MOST_OPEN = 10_000
"""More open connections than this end the run: silently waiting for a free one would make the loop a closed one."""
REFUSED = frozenset({429, 503})
DONE = b"[DONE]"


class Overrun(Exception):
    """The generator cannot hold the load that was asked of it, so that nothing measured would be true."""


@dataclass(frozen=True)
class Caller:
    """Who sends, to which port, for which model."""

    tenant: str
    key: str | None
    port: int
    model: str

    def request(self, prompt: str, tokens: int) -> bytes:
        """A streamed completion of exactly so many tokens, as bytes."""
        body = json.dumps(
            {
                "model": self.model,
                "prompt": prompt,
                "max_tokens": tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = [
            "POST /v1/completions HTTP/1.1",
            f"host: {HOST}:{self.port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        if self.key:
            head.append(f"authorization: Bearer {self.key}")
        return "\r\n".join([*head, "", ""]).encode() + body


@dataclass(frozen=True)
class Arrival:
    """One request that will be sent at `seconds`."""

    seconds: float
    caller: Caller
    prompt: str
    tokens: int


def poisson(rate: float, seconds: float, seed: str) -> list[float]:
    """The times of a Poisson process; one seed gives the same pattern at every rate, stretched."""
    chance = random.Random(seed)
    times: list[float] = []
    at = chance.expovariate(1.0) / rate
    while at < seconds:
        times.append(at)
        at += chance.expovariate(1.0) / rate
    return times


def prompts(seed: str) -> Iterator[str]:
    """Short prompts of about the same length that differ from the first word on: no prefix of one helps another."""
    chance = random.Random(seed)
    while True:
        yield f"{chance.randrange(10**8, 10**9)} is a number. Tell me what it could stand for."


def lengths(between: tuple[int, int], seed: str) -> Iterator[int]:
    """Tokens of one reply after the other, the least and the most included."""
    chance = random.Random(seed)
    while True:
        yield chance.randint(*between)


class Exchange(asyncio.Protocol):
    """One request on one connection, from connecting to the reply's end."""

    def __init__(self, arrival: Arrival, clock: Callable[[], float]) -> None:
        self.arrival = arrival
        self.over = asyncio.get_running_loop().create_future()
        self.started = asyncio.get_running_loop().create_future()
        """Done when the server has said yes (a status below 400) or no."""
        self._clock = clock
        self._sent = clock()
        self._end = self._sent
        self._reader = ReplyReader()
        self._chunks: list[float] = []
        self._outcome: Outcome | None = None
        self._code: str | None = None
        self._tokens: int | None = None
        self._transport: asyncio.Transport | None = None

    async def run(self) -> None:
        """Connect, send, and wait for the end."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, HOST, self.arrival.caller.port)
        except OSError as error:
            self._finish("failed", type(error).__name__)
        await self.ended()

    async def ended(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the end, and say whether it came. The waiter may be cancelled: the exchange is not."""
        await asyncio.wait([self.over], timeout=timeout_seconds)
        return self.over.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request in one piece."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.over.done():  # cut while it was connecting
            transport.abort()
            return
        transport.write(self.arrival.caller.request(self.arrival.prompt, self.arrival.tokens))

    def data_received(self, data: bytes) -> None:
        """Note when each token came, and how the reply ends."""
        now = self._clock()
        if self.over.done():
            return
        try:
            events = self._reader.feed(data)
        except WireFault as fault:
            self._finish("failed", str(fault))
            return
        if self._reader.status is not None and not self.started.done():
            self.started.set_result(self._reader.status)
        for event in events:
            self._take(event, now)
        if self._reader.ended:
            self._conclude()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a reply without a length, or of one that was cut off."""
        self._reader.close()
        self._conclude()

    def cut(self, outcome: Outcome = "cut") -> None:
        """Close the connection now."""
        self._finish(outcome, None)

    def record(self) -> Record:
        """What is known of it; only when it is over."""
        assert self._outcome is not None
        headers = self._reader.headers
        retry: float | None = None
        if self._outcome == "refused" and "retry-after-ms" in headers:
            retry = float(headers["retry-after-ms"]) / 1000
        elif self._outcome == "refused" and "retry-after" in headers:
            retry = float(headers["retry-after"])
        return Record(
            tenant=self.arrival.caller.tenant,
            scheduled=self.arrival.seconds,
            sent=self._sent,
            end=self._end,
            outcome=self._outcome,
            status=self._reader.status,
            code=self._code,
            retry_after_seconds=retry,
            asked_tokens=self.arrival.tokens,
            chunks=tuple(self._chunks),
        )

    def _take(self, event: bytes, now: float) -> None:
        if event == DONE:
            whole = self._tokens == self.arrival.tokens
            self._finish("complete" if whole else "failed", None if whole else "wrong_length")
        elif event.startswith(b'{"error"'):
            self._finish("failed", _code(event))
        elif b'"choices":[]' in event or b'"choices": []' in event:
            self._tokens = int(json.loads(event)["usage"]["completion_tokens"])
        else:
            self._chunks.append(now)

    def _conclude(self) -> None:
        status = self._reader.status
        if status in REFUSED and self._reader.ended:
            self._finish("refused", _code(self._reader.text))
        elif status is not None and status >= 400:
            self._finish("failed", _code(self._reader.text) or str(status))
        else:
            self._finish("failed", "no_end" if status else "no_reply")

    def _finish(self, outcome: Outcome, code: str | None) -> None:
        if self.over.done():
            return
        self._end, self._outcome, self._code = self._clock(), outcome, code
        self.over.set_result(None)
        if not self.started.done():
            self.started.set_result(0)
        if self._transport is not None:
            self._transport.abort()


def _code(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


class Load:
    """The requests of one stage: sent, watched, and at the end closed, each of them.

    A context: leaving it closes what is open, so that no request outlives its stage.
    """

    def __init__(self, most_open: int = MOST_OPEN) -> None:
        self._start = time.perf_counter()
        self._exchanges: list[Exchange] = []
        self._open: dict[asyncio.Task[None], Exchange] = {}
        self._most_open = most_open

    async def __aenter__(self) -> Self:
        """The stage's clock starts now."""
        self._start = time.perf_counter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close what is open and wait until it is."""
        await self.close()

    def clock(self) -> float:
        """Seconds of the stage."""
        return time.perf_counter() - self._start

    def send(self, arrival: Arrival) -> Exchange:
        """Begin one request now; raises `Overrun` when too many are open."""
        if len(self._open) >= self._most_open:
            raise Overrun(f"{self._most_open} requests are open at once; lower the load or raise MOST_OPEN")
        exchange = Exchange(arrival, self.clock)
        task = asyncio.create_task(exchange.run())
        self._exchanges.append(exchange)
        self._open[task] = exchange
        task.add_done_callback(lambda done: self._open.pop(done, None))
        return exchange

    async def play(self, arrivals: Sequence[Arrival]) -> None:
        """Send each when it is due. What comes back is not looked at: the loop is open."""
        for arrival in arrivals:
            wait = arrival.seconds - self.clock()
            if wait > 0:
                await asyncio.sleep(wait)
            self.send(arrival)

    async def finish(self, until_scheduled: float, at_latest: float) -> None:
        """Wait until every request that was due before `until_scheduled` is over, or the clock shows `at_latest`."""
        while self.clock() < at_latest:
            if all(one.arrival.seconds >= until_scheduled for one in self._open.values()):
                return
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Close every open connection; each such request counts as `cut`."""
        tasks = list(self._open.items())
        for _, exchange in tasks:
            exchange.cut()
        if tasks:
            await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)

    def records(self) -> list[Record]:
        """Every request that is over, in the order of sending."""
        return [exchange.record() for exchange in self._exchanges if exchange.over.done()]


async def open_loop(arrivals: Sequence[Arrival], until_scheduled: float, at_latest: float) -> list[Record]:
    """Play a whole stage and return its records.

    Arrivals go on until what counts is over, so that the last ones that count are served under the same load.
    """
    async with Load() as load:
        playing = asyncio.create_task(load.play(arrivals))
        try:
            await asyncio.wait([playing], timeout=until_scheduled - load.clock())
            if not playing.done():
                finishing = asyncio.create_task(load.finish(until_scheduled, at_latest))
                await asyncio.wait([playing, finishing], return_when=asyncio.FIRST_COMPLETED)
                finishing.cancel()
            if playing.done():
                playing.result()  # raises Overrun
                await load.finish(until_scheduled, at_latest)
        finally:
            playing.cancel()
        await load.close()
        return load.records()


async def closed_loop(
    caller: Caller, workers: int, *, seconds: float, spread_seconds: float, tokens: tuple[int, int], seed: str
) -> list[Record]:
    """So many requests at a time: the next is sent when one is over. Starts are spread, so that they do not march."""
    texts, sizes = prompts(seed), lengths(tokens, seed)

    async def work(load: Load, delay: float) -> None:
        await asyncio.sleep(delay)
        while load.clock() < seconds:
            exchange = load.send(Arrival(load.clock(), caller, next(texts), next(sizes)))
            await exchange.ended()
            wait = exchange.record().retry_after_seconds
            if exchange.record().outcome != "complete":
                await asyncio.sleep(min(wait or 0.1, 1.0))

    async with Load() as load:
        tasks = [asyncio.create_task(work(load, spread_seconds * n / workers)) for n in range(workers)]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        failures = [f for f in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(f, Exception)]
        if failures:
            raise failures[0]
        await load.close()
        return load.records()
