"""Budgets in an SQLite file, for all processes of one machine.

A thread of its own works on the file, so that the event loop never waits for a disk. What has gathered while it was
busy is done in one transaction. A second thread moves the write-ahead log into the file: that alone waits for the disk
to have it, a tenth of a second and more on a busy one. Knows the file and the threads; the statements are in `ledger`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from jubako.errors import StartupFault
from jubako.gate.budgets.ledger import Ledger, prepare
from jubako.gate.budgets.store import Amend, Answer, Claim, End, StoreAway, Take

logger = logging.getLogger(__name__)

LOCKED_SECONDS = 0.5
"""How long another process may have the file before a request is refused."""
OPENING_SECONDS = 5
BATCH = 256
_PAUSE_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005)

CHECKPOINT_SECONDS = 1.0
CHECKPOINT_TRANSACTIONS = 500
LARGE_LOG_PAGES = 16_384
"""64 MB. A log that is written to all the time never ends by itself: work then stops while the rest is moved."""

Work = Callable[[Ledger], Any]
Job = tuple[Work, "asyncio.Future[Any]"]


class SqliteStore:
    """One instance of the server at the file; a `Store`."""

    def __init__(self, file: Path, *, instance: str, lease_seconds: float, clock: Callable[[], float]) -> None:
        self._file = file
        self._instance = instance
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._at_work = threading.Lock()
        self._closing = threading.Event()
        self._transactions = 0
        """Since the log was last moved."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Make or check the file; raises `StartupFault`."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._start(self._work, self._loop, opened)
        await opened
        self._start(self._checkpoint)

    async def take(self, take: Take) -> Answer:
        """See `Store`."""
        answer: Answer = await self._do(lambda ledger: ledger.take(take))
        return answer

    async def amend(self, amend: Amend) -> Answer:
        """See `Store`."""
        answer: Answer = await self._do(lambda ledger: ledger.amend(amend))
        return answer

    async def end(self, ends: tuple[End, ...], claims: tuple[Claim, ...] = ()) -> Answer:
        """See `Store`. What is doubtful needs no care: jobs are done in the order they came."""

        def work(ledger: Ledger) -> Answer:
            for end in ends:
                ledger.end(end)
            return ledger.standings(claims)

        answer: Answer = await self._do(work)
        return answer

    async def beat(self) -> None:
        """See `Store`."""
        await self._do(Ledger.beat)

    async def leave(self) -> None:
        """See `Store`."""
        await self._do(Ledger.leave)

    async def close(self) -> None:
        """Let the thread finish what it has; a thread that a disk holds is left behind."""
        self._jobs.put(None)
        self._closing.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, OPENING_SECONDS)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name="budgets", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _do(self, work: Work) -> asyncio.Future[Any]:
        if self._loop is None:
            raise StoreAway("it was not opened")
        done: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.put((work, done))
        return done

    def _work(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        try:
            connection = connect(self._file)
        except StartupFault as fault:
            _tell(loop, [(opened, None, fault)])
            return
        ledger = Ledger(connection, self._instance, self._lease_seconds, self._clock)
        _tell(loop, [(opened, None, None)])
        try:
            while (job := self._jobs.get()) is not None:
                jobs = [job]
                while len(jobs) < BATCH and not self._jobs.empty():
                    more = self._jobs.get()
                    if more is None:
                        self._jobs.put(None)
                        break
                    jobs.append(more)
                with self._at_work:
                    told = _transact(connection, ledger, jobs)
                self._transactions += 1
                _tell(loop, told)
        finally:
            connection.close()

    def _checkpoint(self) -> None:
        """Move the log while the other thread works on; stop that only for the rest of one that grew large.

        Whatever fails is tried again with a new connection, and told once: a log that is never moved fills the disk.
        """
        connection: sqlite3.Connection | None = None
        told = False
        while not self._closing.wait(CHECKPOINT_SECONDS):
            if self._transactions < CHECKPOINT_TRANSACTIONS:
                continue
            try:
                connection = connection or sqlite3.connect(self._file, timeout=0, isolation_level=None)
                self._move_log(connection)
            except Exception as error:  # noqa: BLE001 - the thread lives on, whatever it is
                if not told:
                    logger.warning("the log of the budgets file cannot be moved into it: %s", error)
                told = True
                if connection is not None:
                    connection.close()
                    connection = None
            else:
                self._transactions, told = 0, False
        if connection is not None:
            connection.close()

    def _move_log(self, connection: sqlite3.Connection) -> None:
        _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if pages > LARGE_LOG_PAGES:
            with self._at_work:
                connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()


Told = tuple["asyncio.Future[Any]", Any, BaseException | None]


def _transact(connection: sqlite3.Connection, ledger: Ledger, jobs: list[Job]) -> list[Told]:
    """All jobs in one transaction, or none."""
    try:
        _begin(ledger)
        told: list[Told] = [(done, work(ledger), None) for work, done in jobs]
        ledger.commit()
    except Exception as error:  # noqa: BLE001 - whatever it is, the thread lives on and the requests are refused
        with suppress(sqlite3.Error):  # the next transaction says what is the matter
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        reason = f"{type(error).__name__}: {error}"
        return [(done, None, StoreAway(reason)) for _, done in jobs]
    return told


def _begin(ledger: Ledger) -> None:
    """Take the write lock. SQLite's own waiting grows to a tenth of a second and lets others overtake."""
    give_up_at = time.monotonic() + LOCKED_SECONDS
    attempt = 0
    while True:
        try:
            ledger.begin()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(_PAUSE_SECONDS[min(attempt, len(_PAUSE_SECONDS) - 1)])
            attempt += 1
        else:
            return


def _tell(loop: asyncio.AbstractEventLoop, told: list[Told]) -> None:
    def tell() -> None:
        for done, answer, error in told:
            if done.cancelled():
                continue
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(answer)

    with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
        loop.call_soon_threadsafe(tell)


def connect(file: Path) -> sqlite3.Connection:
    """The file, made if it is not there, checked and ready; raises `StartupFault`."""
    advice = "Set budgets.sqlite_file to a path that the server may write, on a local disk."
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite would make it readable by all; its log files take this file's mode.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StartupFault(f"budgets file {file}: cannot be written: {error.strerror}. {advice}") from None
    try:
        connection = sqlite3.connect(file, timeout=OPENING_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise StartupFault(f"budgets file {file}: cannot be opened: {error}. {advice}") from None
    try:
        prepare(connection)
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except StartupFault as fault:
        connection.close()
        away = "Move it away and a new one is made: what was used this minute, day and month is then forgotten."
        raise StartupFault(f"budgets file {file}: {fault}. {away}") from None
    except sqlite3.OperationalError as error:
        connection.close()
        raise StartupFault(f"budgets file {file}: cannot be used: {error}. {advice}") from None
    except sqlite3.DatabaseError as error:
        connection.close()
        away = "Move it away and a new one is made: what was used this minute, day and month is then forgotten."
        raise StartupFault(f"budgets file {file}: {error}. {away}") from None
    return connection
