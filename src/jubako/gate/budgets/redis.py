"""Budgets in Redis, for several replicas.

The time is Redis's own: the clocks of replicas differ, and a window can have only one. All keys carry one hash tag, so
that in a cluster they are in one place, as a script that frees what a dead replica held needs them to be. They expire
by themselves when they say nothing any more; Redis must not evict them before (`maxmemory-policy noeviction`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from jubako.errors import StartupFault
from jubako.gate.budgets import redis_scripts
from jubako.gate.budgets.store import Amend, Answer, Claim, End, StoreAway, Take
from jubako.gate.budgets.windows import Standing

PREFIX = "jubako:{budgets}:2:"
"""The number is that of the layout: another one is another account book."""
ANSWER_SECONDS = 2.0
CONNECTIONS = 8
"""Used at once; callers take turns. A pool that blocks lets newcomers overtake, and some wait for ever."""
_STANDING = 10


class Script:
    """A Lua script and the digest that Redis knows it by."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


TAKE, AMEND, END = Script(redis_scripts.TAKE), Script(redis_scripts.AMEND), Script(redis_scripts.END)
BEAT, LEAVE = Script(redis_scripts.BEAT), Script(redis_scripts.LEAVE)


class RedisStore:
    """One instance of the server at a Redis; a `Store`. `clock` is for tests; None: Redis's own."""

    def __init__(
        self,
        url: str,
        password_file: Path | None,
        *,
        instance: str,
        lease_seconds: float,
        clock: Callable[[], float] | None,
    ) -> None:
        self._url = url
        self._password_file = password_file
        self._instance = instance
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._redis: Redis | None = None
        self._sent: set[asyncio.Task[Any]] = set()
        self._turns = asyncio.Semaphore(CONNECTIONS)

    async def open(self) -> None:
        """Connect and try a script; raises `StartupFault`."""
        self._redis = connect(self._url, self._password_file)
        try:
            await self.beat()
        except StoreAway as away:
            await self.close()
            raise StartupFault(
                f"budgets.redis_url {self._url}: {away}. Start Redis there, or check the address, the user and "
                "budgets.redis_password_file."
            ) from None

    async def take(self, take: Take) -> Answer:
        """See `Store`."""
        return await self._ask(TAKE, take.number, take.tokens, take.claims)

    async def amend(self, amend: Amend) -> Answer:
        """See `Store`."""
        return await self._ask(AMEND, amend.number, amend.tokens, amend.claims)

    async def end(self, ends: tuple[End, ...], claims: tuple[Claim, ...] = ()) -> Answer:
        """See `Store`. A take that was sent and not answered may be done later than this: it is fenced off."""
        values = _limits(claims)
        for end in ends:
            values += (end.number, -1 if end.tokens is None else end.tokens, int(end.doubtful))
        return _answer(await self._run(END, _keys(claims), values))

    async def beat(self) -> None:
        """See `Store`. Redis forgets what is old by itself."""
        await self._run(BEAT, (), ())

    async def leave(self) -> None:
        """See `Store`."""
        await self._run(LEAVE, (), ())

    async def close(self) -> None:
        """Disconnect."""
        if self._redis is not None:
            await asyncio.gather(*self._sent, return_exceptions=True)
            with suppress(exceptions.RedisError, OSError):  # it is gone already
                await self._redis.aclose()
            self._redis = None

    async def _ask(self, script: Script, number: int, tokens: int, claims: tuple[Claim, ...]) -> Answer:
        return _answer(await self._run(script, _keys(claims), [number, tokens, *_limits(claims)]))

    async def _run(self, script: Script, keys: tuple[str, ...], values: Any) -> Any:
        if self._redis is None:
            raise StoreAway("it was not opened")
        now = "" if self._clock is None else repr(self._clock())
        arguments = (*keys, now, PREFIX, self._instance, self._lease_seconds, *values)
        # A caller who leaves must not take a connection with it; what was sent is answered, or times out by itself.
        sent = asyncio.create_task(_send(self._redis, self._turns, script, len(keys), arguments))
        self._sent.add(sent)
        sent.add_done_callback(self._sent.discard)
        return await asyncio.shield(sent)


def _keys(claims: tuple[Claim, ...]) -> tuple[str, ...]:
    return tuple(PREFIX + "account:" + claim.account for claim in claims)


def _limits(claims: tuple[Claim, ...]) -> list[Any]:
    values: list[Any] = []
    for claim in claims:
        budget = claim.budget
        limits = (budget.requests_per_minute, budget.tokens_per_minute, budget.tokens_per_day)
        values += (-1 if limit is None else limit for limit in (*limits, budget.tokens_per_month, budget.concurrency))
    return values


def _answer(told: list[Any]) -> Answer:
    granted, now, known, *numbers = told
    rows = (numbers[at : at + _STANDING] for at in range(0, len(numbers), _STANDING))
    return Answer(granted == 1, float(now), tuple(Standing(*row) for row in rows), known == 1)


async def _send(client: Redis, turns: asyncio.Semaphore, script: Script, keys: int, arguments: tuple[Any, ...]) -> Any:
    try:
        async with turns:
            try:
                return await client.evalsha(script.digest, keys, *arguments)
            except exceptions.NoScriptError:
                # Restarted since, or never asked before; EVAL makes it known.
                return await client.eval(script.text, keys, *arguments)
    except (exceptions.RedisError, OSError) as error:
        raise StoreAway(f"{type(error).__name__}: {error}") from None


def connect(url: str, password_file: Path | None) -> Redis:
    """A client that has not connected yet; raises `StartupFault` for what can never work."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname:
        raise StartupFault("budgets.redis_url: expected redis://host:port/number or rediss://host:port/number.")
    if parts.password is not None or "password" in parts.query:
        raise StartupFault(
            "budgets.redis_url: it holds a password. Put that into a file of its own, and its path into "
            "budgets.redis_password_file."
        )
    password = None
    if password_file is not None:
        try:
            password = password_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise StartupFault(f"budgets.redis_password_file {password_file}: {reason}.") from None
        if not password:
            raise StartupFault(f"budgets.redis_password_file {password_file}: it is empty.")
    try:
        pool = ConnectionPool.from_url(
            url,
            password=password,
            max_connections=2 * CONNECTIONS,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # A connection that went stale is found out by using it. Repeating is safe: a take has its number.
            retry=Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,)),
        )
    except ValueError as error:
        raise StartupFault(f"budgets.redis_url: {error}.") from None
    return Redis.from_pool(pool)
