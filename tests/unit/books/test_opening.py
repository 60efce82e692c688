"""The books of a server: opened by its settings, closed with all that was said, and never in the way of a request."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from jubako.books import database
from jubako.books.audit import Audit, AuditFault
from jubako.books.books import Books
from jubako.books.ledger import Ledger, LedgerState
from jubako.books.schema import usage
from jubako.errors import StartupFault, Unavailable
from tests.accounts import account
from tests.ledgers import append, audited, rows, settings
from tests.postgres import Postgres
from tests.project import until


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg://user:secret-word@host/db", "a password does not belong here"),
        ("postgresql+psycopg://user@host/db?password=secret-word", "a password does not belong here"),
        ("mysql://user:secret-word@host/db", "must begin with"),
        ("postgresql://user@host/db", "must begin with"),
        ("no url: secret-word", "is not a URL"),
    ],
)
def test_a_wrong_url_is_refused_without_repeating_it(tmp_path: Path, url: str, said: str) -> None:
    """It may hold a password."""
    with pytest.raises(StartupFault, match=said) as raised:
        database.url(url, tmp_path)
    assert "secret-word" not in str(raised.value)


async def test_the_books_of_a_server_are_opened_kept_and_closed(tmp_path: Path) -> None:
    """As the server does it."""
    books = await asyncio.to_thread(Books.open, settings(), tmp_path, "e" * 64)
    for number in range(100):
        books.record(account(number, release=""))
    assert books.healthy
    books.require_healthy()
    await books.close()
    assert books.lag == 0
    assert books.behind_seconds == 0
    assert {line["release"] for line in audited(tmp_path / "books" / "audit")} == {"e" * 64}
    made = database.engine(database.url(None, tmp_path / "books" / "ledger.sqlite"), None, read_only=True)
    assert len(rows(made, usage)) == 100
    made.dispose()


async def test_books_that_cannot_be_written_refuse_new_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail closed: what could not be billed is not served."""
    books = await asyncio.to_thread(Books.open, settings(), tmp_path, "e" * 64)
    monkeypatch.setattr(os, "write", lambda *_: 0)
    with pytest.raises(AuditFault):
        books.record(account())
    assert not books.healthy
    with pytest.raises(Unavailable):
        books.require_healthy()
    monkeypatch.undo()
    until(lambda: books.healthy, "records resume")
    books.record(account())
    await books.close()


async def test_a_start_without_its_database_serves_and_catches_up(tmp_path: Path, cluster: Postgres) -> None:
    """Away is not wrong: the audit is the record, and the ledger is taken from it later."""
    cluster.stop()
    chosen = settings(ledger_url=cluster.url, ledger_password_file=cluster.password_file)
    try:
        books = await asyncio.to_thread(Books.open, chosen, tmp_path, "e" * 64)
        for number in range(10):
            books.record(account(number))
        assert books.healthy
        until(lambda: books.ledger_state is LedgerState.WAITING, "the ledger waits")
        assert books.lag == 10
    finally:
        cluster.start()
    until(lambda: books.lag == 0, "the ledger catches up")
    await books.close()


def test_a_wrong_place_refuses_the_start(tmp_path: Path) -> None:
    """With the setting's name."""
    (tmp_path / "file").touch()
    with pytest.raises(StartupFault, match=r"books\.ledger_sqlite_file"):
        Books.open(settings(ledger_sqlite_file=Path("file/ledger.sqlite")), tmp_path, "")
    with pytest.raises(StartupFault, match=r"books\.ledger_password_file"):
        Books.open(settings(ledger_password_file=Path("nowhere")), tmp_path, "")


def test_recording_waits_for_no_database(audit: Audit, tmp_path: Path) -> None:
    """Appending has one system call in it, whatever the ledger does: a second is a thousand times what it takes."""
    ledger = Ledger(
        audit, database.engine(database.url(None, tmp_path / "nowhere" / "ledger.sqlite"), None), row_days=None
    )
    ledger.start()
    begun = time.thread_time()
    append(audit, 1000)
    assert time.thread_time() - begun < 5
    assert ledger.lag == 1000
    ledger.close(5)
