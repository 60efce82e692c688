"""The books of one server: the audit that each request is written to, and the ledger that follows it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from jubako.books.audit import Audit
from jubako.books.echo import Echo
from jubako.books.ledger import Ledger, LedgerState
from jubako.errors import Unavailable
from jubako.sections import BooksSettings
from jubako.vocabulary import Account

CLOSE_SECONDS = 5.0
"""For the ledger to book what was written; what it does not manage, the next start takes."""


class Books:
    """Made by `open`; then every request's account is given to `record` once."""

    def __init__(self, audit: Audit, ledger: Ledger, echo: Echo | None, release_digest: str) -> None:
        self._audit = audit
        self._ledger = ledger
        self._echo = echo
        self._release_digest = release_digest

    @classmethod
    def open(cls, settings: BooksSettings, root: Path, release_digest: str) -> Books:
        """Take the audit's folder and begin to follow it; relative paths start at `root`.

        Takes up to seconds (imports, the last audit file, a database that does not answer): call it in a thread, before
        requests come. A database that is away does not refuse the start, a wrong one does. Raises `StartupFault`.
        """
        from sqlalchemy.exc import SQLAlchemyError

        from jubako.books import database

        password_file = None if settings.ledger_password_file is None else root / settings.ledger_password_file
        address = database.url(settings.ledger_url, root / settings.ledger_sqlite_file)
        database.require_place(address, password_file)
        engine = database.engine(address, password_file)
        with suppress(SQLAlchemyError, OSError):  # away or busy: the ledger's thread goes on trying, and says so
            database.migrate(engine)
        audit = Audit.open(
            root / settings.audit_folder, file_bytes=settings.audit_file_bytes, keep_files=settings.audit_files
        )
        ledger = Ledger(audit, engine, row_days=settings.ledger_row_days)
        ledger.start()
        echo = None
        if settings.audit_standard_output:
            echo = Echo(audit.folder, audit.journal, audit.position, sys.stdout.fileno())
        return cls(audit, ledger, echo, release_digest)

    def record(self, account: Account) -> None:
        """Put the account on record, before the last bytes of its reply are sent; raises `AuditFault` if it is not.

        For the event loop alone.
        """
        self._audit.append(account if account.release else replace(account, release=self._release_digest))

    def require_healthy(self) -> None:
        """Refuse a new request while it could not be put on record."""
        if self._audit.fault:
            raise Unavailable("The server cannot keep its books now.", code="not_ready", retry_after_seconds=5)

    @property
    def healthy(self) -> bool:
        """Whether requests can be put on record. A ledger that is behind does not change that."""
        return not self._audit.fault

    @property
    def unrecorded(self) -> int:
        """Requests since the start that ended, not refused, while the audit could not be written; all are logged."""
        return self._audit.unrecorded

    @property
    def lag(self) -> int:
        """Requests that are in the audit and not yet in the ledger."""
        return self._ledger.lag

    @property
    def behind_seconds(self) -> float:
        """How long ago the ledger had everything that the audit has; zero while it does."""
        return self._ledger.behind_seconds

    @property
    def ledger_state(self) -> LedgerState:
        """Whether the ledger follows, waits for its database, or has stopped."""
        return self._ledger.state

    async def close(self) -> None:
        """Have everything on disk, and as much of it booked as a few seconds allow."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._audit.sync()
        self._ledger.close(CLOSE_SECONDS)
        if self._echo is not None:
            self._echo.close(CLOSE_SECONDS)
        self._audit.close()
