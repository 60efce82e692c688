"""Budgets in an SQLite file, for all processes of one machine.

A thread of its own works on the file, so that the event loop never waits for a disk; while it has a tenure there, the
loop decides by itself, in memory. A second thread moves the write-ahead log into the file: that alone waits for the
disk to have it, a tenth of a second and more on a busy one. Knows the file and the threads; what the first does is in
`tenure`, the statements are in `ledger`, and what is decided in `tally`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from jubako.errors import StartupFault
from jubako.gate.budgets.ledger import Ledger, prepare
from jubako.gate.budgets.store import Amend, Answer, Claim, End, StoreAway, Take
from jubako.gate.budgets.tally import Missing, Tally
from jubako.gate.budgets.tenure import Job, Tenures
from jubako.gate.budgets.turn import Turn

logger = logging.getLogger(__name__)

OPENING_SECONDS = 5

SOON_SECONDS = 0.002
"""How long the event loop waits for a gate that opens at once, if the system lets the thread come to it: to be told by
the thread would take longer."""

CHECKPOINT_SECONDS = 1.0
CHECKPOINT_TRANSACTIONS = 500
LARGE_LOG_PAGES = 16_384
"""64 MB. A log that is written to all the time never ends by itself: work then stops while the rest is moved."""

T = TypeVar("T")


class SqliteStore:
    """One instance of the server at the file; a `Store`."""

    def __init__(self, file: Path, *, instance: str, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._file = file
        self._instance = instance
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._tally = Tally(clock)
        self._gate = threading.Lock()
        """Free while a tenure is open to the event loop."""
        self._gate.acquire()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._tenures: Tenures | None = None
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Make or check the file; raises `StartupFault`."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._start(self._work, self._loop, opened)
        await opened
        self._start(self._checkpoint)

    def take(self, take: Take) -> Answer | asyncio.Future[Answer]:
        """See `Store`."""
        return self._ask(lambda tally: tally.take(take))

    def amend(self, amend: Amend) -> Answer | asyncio.Future[Answer]:
        """See `Store`."""
        return self._ask(lambda tally: tally.amend(amend))

    def end(self, ends: tuple[End, ...], claims: tuple[Claim, ...] = ()) -> Answer | asyncio.Future[Answer]:
        """See `Store`. What is doubtful needs no care: one that is not remembered waits for what was asked before."""
        return self._ask(lambda tally: tally.end(ends, claims))

    async def beat(self) -> None:
        """See `Store`."""
        await self._do(Ledger.beat, durable=True)

    async def leave(self) -> None:
        """See `Store`."""
        await self._do(Ledger.leave, durable=True)

    async def close(self) -> None:
        """Let the thread finish what it has; a thread that a disk holds is left behind."""
        self._jobs.put(None)
        self._closing.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, OPENING_SECONDS)

    def _ask(self, ask: Callable[[Tally], Answer]) -> Answer | asyncio.Future[Answer]:
        """Decide at once if a tenure is open and all is remembered that it takes; else the thread does."""
        tenures = self._tenures
        if self._gate.acquire(blocking=False) or (
            tenures is not None and tenures.soon_open and self._gate.acquire(timeout=SOON_SECONDS)
        ):
            try:
                return ask(self._tally)
            except Missing:
                pass
            finally:
                self._gate.release()
        return self._do(lambda ledger: ledger.answer(ask))

    def _do(self, work: Callable[[Ledger], T], *, durable: bool = False) -> asyncio.Future[T]:
        if self._loop is None:
            raise StoreAway("it was not opened")
        if self._closing.is_set():
            raise StoreAway("it is closed")
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(Job(work, done, durable))
        return done

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="budgets", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        try:
            connection, turn = connect(self._file, self._clock)
        except StartupFault as fault:
            loop.call_soon_threadsafe(opened.set_exception, fault)
            return
        try:
            ledger = Ledger(connection, self._tally, self._instance, self._lease_seconds, self._clock)
            self._tenures = Tenures(connection, ledger, turn, self._gate, self._jobs)
            loop.call_soon_threadsafe(opened.set_result, None)
            self._tenures.run(loop)
        finally:
            connection.close()
            turn.close()

    @property
    def _transactions(self) -> int:
        return self._tenures.transactions if self._tenures is not None else 0

    def _checkpoint(self) -> None:
        """Move the log while the other thread works on; stop that only for the rest of one that grew large.

        Whatever fails is tried again with a new connection, and told once: a log that is never moved fills the disk.
        """
        connection: sqlite3.Connection | None = None
        told = False
        while not self._closing.wait(CHECKPOINT_SECONDS):
            tenures = self._tenures
            if tenures is None or tenures.transactions < CHECKPOINT_TRANSACTIONS:
                continue
            try:
                connection = connection or sqlite3.connect(self._file, timeout=0, isolation_level=None)
                _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                tenures.move_log = pages > LARGE_LOG_PAGES
            except Exception as error:  # noqa: BLE001 - the thread lives on, whatever it is
                if not told:
                    logger.warning("the log of the budgets file cannot be moved into it: %s", error)
                told = True
                if connection is not None:
                    connection.close()
                    connection = None
            else:
                tenures.transactions, told = 0, False
        if connection is not None:
            connection.close()


def connect(file: Path, clock: Callable[[], float]) -> tuple[sqlite3.Connection, Turn]:
    """The file, made if it is not there, checked and ready, and the queue at it; raises `StartupFault`."""
    advice = "Set budgets.sqlite_file to a path that the server may write, on a local disk."
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite would make it readable by all; its log files take this file's mode.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        turn = Turn(file)
    except OSError as error:
        raise StartupFault(f"budgets file {file}: cannot be written: {error.strerror}. {advice}") from None
    try:
        turn.take(OPENING_SECONDS)
        connection = _prepared(file, advice, clock())
        turn.leave()
    except TimeoutError as error:
        turn.close()
        raise StartupFault(f"budgets file {file}: cannot be used: {error}. {advice}") from None
    except StartupFault:
        turn.close()
        raise
    return connection, turn


def _prepared(file: Path, advice: str, now: float) -> sqlite3.Connection:
    away = "Move it away and a new one is made: what was used this minute, day and month is then forgotten."
    try:
        connection = sqlite3.connect(file, timeout=OPENING_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise StartupFault(f"budgets file {file}: cannot be opened: {error}. {advice}") from None
    try:
        prepare(connection, now)
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except StartupFault as fault:
        connection.close()
        raise StartupFault(f"budgets file {file}: {fault}. {away}") from None
    except sqlite3.OperationalError as error:
        connection.close()
        raise StartupFault(f"budgets file {file}: cannot be used: {error}. {advice}") from None
    except sqlite3.DatabaseError as error:
        connection.close()
        raise StartupFault(f"budgets file {file}: {error}. {away}") from None
    return connection
