"""The ledger: taken from the audit's files by a thread of its own, so that no request ever waits for a database.

The rows of a batch, their sums and the line up to which the audit is taken go in one transaction: whatever is killed
when, each line is booked once. Nothing is queued in memory: the backlog is the files. Knows nothing of requests.
"""

from __future__ import annotations

import enum
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from jubako.books.journal import BrokenJournal, Position, Reader, files, read_booked, write_booked
from jubako.errors import StartupFault
from jubako.telemetry import logs

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

    from jubako.books.audit import Audit

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
BUSY_LINES = 16
BUSY_SECONDS = 2.0
"""After a batch of so many lines, the pause until the next: a transaction costs more than the rows in it."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0
FORGET_SECONDS = 3600.0
"""Between two looks for rows that are too old."""
FORGET_ROWS = 2000
"""Deleted in one transaction, so that a lock is held for a moment only."""
DAY_SECONDS = 86_400


class LedgerState(enum.StrEnum):
    """What the ledger is doing."""

    FOLLOWING = "following"
    WAITING = "waiting"
    """The database cannot be reached or is busy, or the audit not be read; the backlog grows in the audit's files."""
    STOPPED = "stopped"
    """The audit or the database is not as it was left: a person has to look. Nothing more is booked until a restart."""


class _MovedOn(Exception):
    """The database is not where we left it: what a killed predecessor had sent was committed only now, or worse."""


class _UnreadableAudit(Exception):
    """The operating system does not give us the audit's files now; says where and why."""


class Ledger:
    """Books one audit into one database, and deletes rows that are older than `row_days`; None keeps them.

    `clock` is monotonic seconds, `now` is Unix seconds.
    """

    def __init__(
        self,
        audit: Audit,
        engine: Engine,
        *,
        row_days: int | None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._audit = audit
        self._engine = engine
        self._row_days = row_days
        self._clock = clock
        self._now = now
        self._forget_at = clock()
        self._forgotten = 0
        self._taken = read_booked(audit.folder, audit.journal)
        """A note of the last server's, until the database has been asked."""
        self._unwritable = False
        """Whether the audit's folder could not be changed after the last batch."""
        self._level_at = clock()
        self._state = LedgerState.WAITING
        self._fault = ""
        self._waits_because = ""
        """What was logged last of why it waits."""
        self._disputed_after: int | None = None
        """The line after which the database had moved on, unless something was booked since."""
        self._ending = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Begin to follow the audit."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Book what is written, but wait no longer than this: the next start takes what is left."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        self._abandoned = True
        if not self._thread.is_alive():
            self._engine.dispose()

    @property
    def state(self) -> LedgerState:
        """What it is doing."""
        return self._state

    @property
    def fault(self) -> str:
        """Why it does not follow; empty while it does."""
        return self._fault

    @property
    def lag(self) -> int:
        """Lines that are written and not yet booked; before the database has answered, as the last server knew it."""
        return max(self._audit.position.sequence - self._taken, 0)

    @property
    def behind_seconds(self) -> float:
        """How long ago the ledger last was level with the audit; zero while it is."""
        return max(self._clock() - self._level_at, 0.0) if self.lag else 0.0

    # -- in the thread

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            before = self._taken
            try:
                self._follow()
            except (BrokenJournal, StartupFault) as error:
                self._stop(str(error))
            except _MovedOn as error:
                self._start_again(str(error))
            except _UnreadableAudit as error:
                self._wait("the audit cannot be read", str(error))
            except Exception as error:  # noqa: BLE001 - each kind is dealt with
                self._misfortune(error)
            if self._state is not LedgerState.WAITING or self._ending.is_set():
                return
            pause = FIRST_PAUSE_SECONDS if self._taken > before else min(pause * 2, LONGEST_PAUSE_SECONDS)
            self._ending.wait(pause)

    def _follow(self) -> None:
        """Take lines until the end is asked for; raises whatever is in the way."""
        from jubako.books import database

        database.migrate(self._engine)
        start = self._start()
        self._taken = start.sequence
        first = True
        with closing(self._reader(start)) as reader:
            while not self._abandoned:
                begun = self._clock()
                # Asked for before the look: what is on disk by then is in it.
                ending = self._ending.is_set()
                before = reader.position
                # Not beyond what is on disk: a power cut must not leave the ledger with lines that the audit lost.
                durable = self._audit.durable.sequence
                lines: list[bytes] = []
                # The first look checks what the audit has against the database; those at nothing new would not be free.
                if first or self._taken < durable:
                    with _of_the_audit():
                        lines = reader.read(durable)
                    first = False
                if lines:
                    self._take(lines, before, reader.position)
                self._recovered()
                if self._taken >= durable:
                    self._level_at = begun
                    if ending:
                        return
                    if self._unwritable:
                        self._tidy()
                    self._forget()
                    self._ending.wait(POLL_SECONDS if len(lines) < BUSY_LINES else BUSY_SECONDS)
                else:
                    # Catching up takes half the time at most: the interpreter's lock is the token path's too.
                    self._ending.wait(self._clock() - begun)

    def _reader(self, start: Position) -> Reader:
        with _of_the_audit():
            return Reader(self._audit.folder, self._audit.journal, start)

    def _start(self) -> Position:
        """Where the database says that this audit was left."""
        import sqlalchemy as sa
        from sqlalchemy import exc

        from jubako.books.schema import journals

        mine = sa.select(journals.c.sequence, journals.c.hash).where(journals.c.journal == self._audit.journal)
        with self._engine.begin() as connection:
            row: Any = connection.execute(mine).first()
            if row is not None:
                return Position(int(row[0]), str(row[1]))
            start = Position()
            values = {"journal": self._audit.journal, "sequence": start.sequence, "hash": start.hash}
            try:
                connection.execute(journals.insert(), [values])
            except exc.IntegrityError:
                raise _MovedOn("another transaction began this audit at the same moment") from None
        with _of_the_audit():
            kept = files(self._audit.folder)
        if kept and kept[0].first > 1:
            logger.warning("ledger: new to this audit; it begins at line %d, the oldest that is kept", kept[0].first)
        return start

    def _take(self, lines: list[bytes], before: Position, after: Position) -> None:
        """Book the lines, all or none."""
        from jubako.books import booking

        rows = [booking.row(json.loads(line)) for line in lines]
        with self._engine.begin() as connection:
            self._advance(connection, before, after)
            booking.book(connection, rows)
        self._taken, self._disputed_after = after.sequence, None
        self._tidy()

    def _advance(self, connection: Connection, before: Position, after: Position) -> None:
        """Move the line up to which the audit is taken; it must be where we left it."""
        from jubako.books.schema import journals

        left = (journals.c.journal == self._audit.journal) & (journals.c.sequence == before.sequence)
        moved = connection.execute(journals.update().where(left).values(sequence=after.sequence, hash=after.hash))
        if moved.rowcount != 1:
            raise _MovedOn(f"the database no longer says that line {before.sequence} was the last taken")

    def _tidy(self) -> None:
        """Remove files that are booked, and note how far that is. A folder that cannot be changed stops no booking."""
        try:
            self._audit.prune(self._taken)
            write_booked(self._audit.folder, self._audit.journal, self._taken)
        except OSError as error:
            if not self._unwritable:
                logger.error("ledger: %s: %s; old audit files stay until it can be written", *_where(error))
            self._unwritable = True
        else:
            if self._unwritable:
                logger.warning("ledger: the audit's folder can be written again")
            self._unwritable = False

    def _forget(self) -> None:
        """Delete some of the rows that are too old; looks for more at once while there are, else after a while."""
        if self._row_days is None or self._clock() < self._forget_at:
            return
        from jubako.books import booking

        first_day = time.strftime("%Y-%m-%d", time.gmtime(self._now() - self._row_days * DAY_SECONDS))
        with self._engine.begin() as connection:
            gone = booking.forget(connection, first_day, FORGET_ROWS)
        self._forgotten += gone
        if gone >= FORGET_ROWS:
            return
        self._forget_at = self._clock() + FORGET_SECONDS
        if self._forgotten:
            logger.info("ledger: %d rows of days before %s are deleted; their sums stay", self._forgotten, first_day)
            self._forgotten = 0

    def _recovered(self) -> None:
        if self._state is not LedgerState.FOLLOWING:
            if self._fault:
                logger.warning("ledger: following again, %d lines behind", self.lag)
            self._state, self._fault, self._waits_because = LedgerState.FOLLOWING, "", ""

    def _start_again(self, why: str) -> None:
        """From what the database says now; the hashes of the chain guard what it says. Twice in one place is a fault.

        A predecessor that was killed, or cut off, while the database still had its commit to do: our own statement
        waited for that commit, and then found nothing to move.
        """
        if self._disputed_after == self._taken:
            self._stop(why)
        else:
            self._disputed_after = self._taken
            self._wait("the database moved on by itself, starting again from what it says", why)

    def _misfortune(self, error: Exception) -> None:
        """A database that is away is waited for; anything else is a fault that waiting does not mend."""
        from sqlalchemy import exc

        if isinstance(error, exc.IntegrityError):
            self._stop("the database has a line of this audit already that it did not say it had")
        elif isinstance(error, exc.DataError | exc.ProgrammingError) or not isinstance(
            error, exc.SQLAlchemyError | OSError
        ):
            self._stop(f"{_first_line(error)} ({logs.place(error)})")
        else:
            self._wait("the database cannot be used, the backlog stays in the audit's files", _first_line(error))

    def _wait(self, because: str, why: str) -> None:
        """Try again later; logged once for each cause in a row."""
        if because != self._waits_because:
            logger.error("ledger: %s: %s", because, why)
        self._state, self._fault, self._waits_because = LedgerState.WAITING, why, because

    def _stop(self, why: str) -> None:
        self._state, self._fault = LedgerState.STOPPED, why
        logger.critical("ledger: stopped, nothing more is booked: %s", why)


def _first_line(error: Exception) -> str:
    """What the driver says, without SQLAlchemy's copy of the statement."""
    origin: Any = getattr(error, "orig", None) or error
    return (str(origin).strip() or type(origin).__name__).splitlines()[0]


@contextmanager
def _of_the_audit() -> Iterator[None]:
    """Tell an `OSError` of the audit's files from those of the way to the database."""
    try:
        yield
    except OSError as error:
        raise _UnreadableAudit(": ".join(_where(error))) from None


def _where(error: OSError) -> tuple[str, str]:
    return str(error.filename or "the audit's folder"), error.strerror or str(error)
