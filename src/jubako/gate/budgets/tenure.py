"""The thread that works on an SQLite file of budgets, and the tenures that it opens to the event loop.

A tenure is a span in which the file is this instance's: it has its turn, and the file's write lock. While nobody else
is alive there, the event loop may decide in memory for that long, at once; the thread writes what came of it at the
end, in one transaction, and goes on with the next while there is work. A tenure ends early for nobody, so it is short.
With others alive, each transaction is for the jobs at hand. Knows nothing of what is asked, or how it is kept.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jubako.gate.budgets.ledger import Ledger
from jubako.gate.budgets.store import StoreAway
from jubako.gate.budgets.turn import Turn, pause_seconds

logger = logging.getLogger(__name__)

TENURE_SECONDS = 0.1
"""What was decided this long is lost if the process is killed, and the longest that a newcomer waits. Ten transactions
a second cost nothing to speak of; were it longer, the loss would grow, and the cost not shrink."""
LOCKED_SECONDS = 0.5
"""How long another process may have the file before a request is refused."""
RETRY_SECONDS = 0.5
"""After this, what could not be written is tried again if nobody has asked for anything."""
BATCH = 256


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do with the file; `durable`: its answer waits until it is on disk."""

    work: Callable[[Ledger], Any]
    done: asyncio.Future[Any]
    durable: bool


class Tenures:
    """The thread's work; made in it. `gate` is held by it whenever the event loop must not touch the tally."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        ledger: Ledger,
        turn: Turn,
        gate: threading.Lock,
        jobs: queue.SimpleQueue[Job | None],
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._turn = turn
        self._gate = gate
        self._jobs = jobs
        self._gate_open = False
        self._ends_at: float | None = None
        """When the present tenure does; None: there is none."""
        self._failing = False
        self.soon_open = False
        """Whether the gate is only closed for what takes no longer than a decision."""
        self.transactions = 0
        """Since the log was last moved."""
        self.move_log = False
        """Whether to stop for the rest of a log that grew large."""

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Work until None is among the jobs."""
        closing = False
        while not closing:
            jobs, closing = self._gather()
            if jobs:
                told = self._do(jobs)
                if self._ends_at is not None:
                    self._open_gate()
                _tell(loop, told)
                if self._ends_at is not None and time.monotonic() >= self._ends_at:
                    self._attend(closing=False)
            else:
                self._attend(closing=closing)
        self._attend(closing=True)
        if self._ledger.tally.deeds:
            logger.error(
                "the budgets file cannot be written: %d reservations and ends are lost", len(self._ledger.tally.deeds)
            )

    def _gather(self) -> tuple[list[Job], bool]:
        """The jobs at hand, or none once there is something else to do; and whether they are the last."""
        wait: float | None = None
        if self._ends_at is not None:
            wait = max(0.0, self._ends_at - time.monotonic())
        elif self._ledger.tally.deeds:
            wait = RETRY_SECONDS
        jobs: list[Job] = []
        try:
            job = self._jobs.get(timeout=wait)
            while job is not None:
                jobs.append(job)
                if len(jobs) == BATCH:
                    return jobs, False
                job = self._jobs.get_nowait()
        except queue.Empty:
            return jobs, False
        return jobs, True

    def _do(self, jobs: list[Job]) -> list[Told]:
        """All jobs, or none."""
        self._close_gate()
        tally = self._ledger.tally
        before: int | None = None
        after: int | None = None
        try:
            self._begin_tenure()
            before = len(tally.deeds)
            told: list[Told] = [(job.done, job.work(self._ledger), None) for job in jobs]
            after = len(tally.deeds)
            if self._ledger.others_alive():
                self._end_tenure()
            elif any(job.durable for job in jobs):
                self._save(meanwhile_open=True)
                before = None
                self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread lives on and the requests are refused
            self._fail()
            if before is not None:
                del tally.deeds[before:after]  # they are told that nothing was done
            return [(job.done, None, StoreAway(f"{type(error).__name__}: {error}")) for job in jobs]
        self._failing = False
        return told

    def _attend(self, *, closing: bool) -> None:
        """What has to be done without jobs: end a tenure, or begin the next; try again what could not be written."""
        try:
            if self._ends_at is not None and not closing and self._ledger.tally.deeds and not self._turn.wanted():
                self._save(meanwhile_open=True)
                self._begin()
                self._ends_at = time.monotonic() + TENURE_SECONDS
                return
            self._close_gate()
            if self._ledger.tally.deeds:
                self._begin_tenure()
            self._end_tenure()
        except Exception as error:  # noqa: BLE001 - the same
            self._fail()
            if not self._failing:
                count = len(self._ledger.tally.deeds)
                logger.warning("the budgets file cannot be written (%s); %d operations are tried again", error, count)
            self._failing = True
        else:
            self._failing = False

    def _begin_tenure(self) -> None:
        if self._ends_at is not None:
            return
        self._turn.take(LOCKED_SECONDS)
        self._begin()
        if self._ledger.tally.deeds:
            # They were answered and could not be written: nothing else is answered before they are.
            self._save(meanwhile_open=False)
            self._begin()
        self._ends_at = time.monotonic() + TENURE_SECONDS

    def _end_tenure(self) -> None:
        if self._ends_at is None:
            return
        self._save(meanwhile_open=False)
        self._ends_at = None
        self._turn.leave()

    def _begin(self) -> None:
        """Take the write lock. SQLite's own waiting grows to a tenth of a second and lets others overtake."""
        if self.move_log:
            self.move_log = False
            with suppress(sqlite3.Error):  # the thread that moves the log tells of it
                self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        give_up_at, attempt = time.monotonic() + LOCKED_SECONDS, 0
        while True:
            try:
                self._ledger.begin()
                break
            except sqlite3.OperationalError as error:
                self._close_gate()
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                    raise
                time.sleep(pause_seconds(attempt))
                attempt += 1
        self.transactions += 1
        if not self._ledger.is_as_remembered():
            self._close_gate()
            self._ledger.forget()
            self._ledger.redo()

    def _save(self, *, meanwhile_open: bool) -> None:
        """Write what was done, and end the transaction; the turn stays, so that the event loop may go on meanwhile."""
        tally = self._ledger.tally
        self.soon_open = meanwhile_open
        self._close_gate()
        deeds, tally.deeds = tally.deeds, []
        try:
            changes = tally.changes()
            self.soon_open = False
            if meanwhile_open:
                self._open_gate()
            self._ledger.write(changes)
            self._connection.execute("COMMIT")
        except BaseException:
            self.soon_open = False
            self._close_gate()
            tally.deeds = deeds + tally.deeds
            raise

    def _fail(self) -> None:
        """Nothing of this transaction is in the file; what the event loop was told is done again in another."""
        self._close_gate()
        with suppress(sqlite3.Error):  # the next transaction says what is the matter
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._ledger.forget()
        self._ends_at = None
        self._turn.leave()

    def _open_gate(self) -> None:
        if not self._gate_open:
            self._gate_open = True
            self._gate.release()

    def _close_gate(self) -> None:
        if self._gate_open:
            self._gate.acquire()
            self._gate_open = False


Told = tuple["asyncio.Future[Any]", Any, BaseException | None]


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
