"""A database that is away, slow, killed or late: the ledger waits for it, and books each line once."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from jubako.books import booking, database, journal
from jubako.books.audit import Audit
from jubako.books.ledger import Ledger, LedgerState
from jubako.books.schema import journals, usage, usage_daily
from tests.accounts import opened
from tests.ledgers import append, assert_books_agree, audited, caught_up, rows
from tests.postgres import PASSWORD, Postgres
from tests.project import until


def test_a_start_without_the_database_knows_what_is_booked(
    cluster: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is pending is not the whole history then."""
    monkeypatch.setattr("jubako.books.ledger.FIRST_PAUSE_SECONDS", 0.05)
    address = database.url(cluster.url, tmp_path)
    engine = database.engine(address, cluster.password_file)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    audit = opened(tmp_path / "audit")
    append(audit, 200)
    first = Ledger(audit, engine, row_days=None)
    first.start()
    caught_up(first)
    first.close(10)
    audit.close()
    cluster.stop()
    try:
        audit = opened(tmp_path / "audit")
        second = Ledger(audit, engine, row_days=None)
        assert (second.lag, second.behind_seconds) == (0, 0)
        second.start()
        until(lambda: second.state is LedgerState.WAITING and bool(second.fault), "the ledger waits")
        append(audit, 7, first=200)
        assert second.lag == 7
    finally:
        cluster.start()
    caught_up(second)
    assert_books_agree(engine, audit.folder)
    second.close(10)
    audit.close()


def test_a_locked_database_is_waited_for(audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go on meanwhile, the lag can be read, and then everything is booked."""
    monkeypatch.setattr(database, "SQLITE_BUSY_SECONDS", 0.1)
    engine = database.engine(database.url(None, tmp_path / "ledger.sqlite"), None)
    database.migrate(engine)
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    append(audit, 10)
    caught_up(ledger)
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    append(audit, 500, first=10)
    until(lambda: ledger.state is LedgerState.WAITING, "the ledger waits")
    assert "locked" in ledger.fault
    assert ledger.lag == 500
    assert ledger.behind_seconds > 0
    other.execute("ROLLBACK")
    other.close()
    caught_up(ledger)
    assert ledger.fault == ""
    assert len(rows(engine, usage)) == 510
    ledger.close(10)


def test_a_postgresql_that_is_killed_under_load_comes_back_to_everything(cluster: Postgres, tmp_path: Path) -> None:
    """Twice, in the middle of its transactions, while lines are written all the time."""
    audit = opened(tmp_path / "audit", file_bytes=1 << 16, keep_files=1000)
    engine = database.engine(database.url(cluster.url, tmp_path), cluster.password_file)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    engine.dispose()
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    ending = threading.Event()
    written = 0

    def load() -> None:
        nonlocal written
        while not ending.wait(0.02):
            append(audit, 20, first=written)
            written += 20

    writer = threading.Thread(target=load)
    writer.start()
    try:
        for _ in range(2):
            _killed_and_started(cluster, audit, ledger)
    finally:
        ending.set()
        writer.join()
    caught_up(ledger)
    assert_books_agree(engine, audit.folder)
    assert len(rows(engine, usage)) == written
    ledger.close(10)
    audit.close()


def _killed_and_started(cluster: Postgres, audit: Audit, ledger: Ledger) -> None:
    """Once while the ledger is booking, and back after some hundred lines more."""
    before = audit.position.sequence
    until(lambda: audit.position.sequence - ledger.lag > before, "the ledger follows")
    cluster.stop()
    until(lambda: ledger.state is LedgerState.WAITING, "the ledger waits")
    assert PASSWORD not in ledger.fault
    away = audit.position.sequence
    until(lambda: audit.position.sequence > away + 200, "requests go on without a database")
    assert ledger.lag >= 200
    cluster.start()
    until(lambda: ledger.state is LedgerState.FOLLOWING, "the ledger follows again")


def test_a_commit_whose_answer_was_lost_is_not_repeated(audit: Audit, tmp_path: Path) -> None:
    """The connection breaks between the database's commit and our knowing of it."""
    engine = database.engine(database.url(None, tmp_path / "ledger.sqlite"), None)
    broken: list[int] = []

    def lose(connection: Connection) -> None:
        if len(broken) < 3 and connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar():
            connection.exec_driver_sql("COMMIT")
            broken.append(1)
            raise sa.exc.OperationalError("COMMIT", None, Exception("connection lost"))

    sa.event.listen(engine, "commit", lose)
    append(audit, 50)
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    caught_up(ledger)
    assert len(broken) == 3
    assert len(rows(engine, usage)) == 50
    assert sum(row["requests"] for row in rows(engine, usage_daily)) == 50
    ledger.close(10)


@dataclass
class Predecessor:
    """A killed server's transaction that PostgreSQL still has to commit."""

    audit: Audit
    engine: Engine

    def begins(self, connection: Connection) -> None:
        """Take the audit for the first time, as `Ledger` does."""
        values = {"journal": self.audit.journal, "sequence": 0, "hash": journal.Position().hash}
        connection.execute(journals.insert(), [values])

    def books(self, connection: Connection, count: int) -> None:
        """The first lines."""
        lines = audited(self.audit.folder)[:count]
        mine = journals.c.journal == self.audit.journal
        values = {"sequence": count, "hash": lines[-1]["hash"]}
        assert connection.execute(journals.update().where(mine).values(values)).rowcount == 1
        booking.book(connection, [booking.row(line) for line in lines])

    def is_waited_for(self) -> bool:
        """Whether the new server's statement stands behind ours."""
        with self.engine.connect() as connection:
            blocked = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
            return bool(connection.exec_driver_sql(blocked).scalar())


@pytest.mark.parametrize("first", [True, False])
def test_a_predecessor_s_late_commit_is_started_from(
    cluster: Postgres, audit: Audit, tmp_path: Path, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The server was killed, its commit was not: the next one neither stops nor books anything twice."""
    new = database.engine(database.url(cluster.url, tmp_path), cluster.password_file)
    other = sa.create_engine(new.url, connect_args={"password": PASSWORD})
    with other.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    database.migrate(new)
    append(audit, 50)
    old = Predecessor(audit, other)
    ledger = Ledger(audit, new, row_days=None)
    if not first:
        with other.begin() as connection:
            old.begins(connection)
    with other.begin() as connection:
        if first:
            old.begins(connection)
        old.books(connection, 30)
        ledger.start()
        until(old.is_waited_for, "the new ledger waits for the old one's commit")
    caught_up(ledger)
    assert_books_agree(new, audit.folder)
    assert "ledger: the database moved on by itself" in caplog.text
    assert "following again" in caplog.text
    ledger.close(10)
    other.dispose()


def test_a_database_that_does_not_move_stops_the_ledger(audit: Audit, engine: Engine, ledger: Ledger) -> None:
    """To start again helps once; a second time in one place is a fault that a person has to look at."""
    database.migrate(engine)
    with engine.begin() as connection:
        for statement in UNMOVED[engine.dialect.name]:
            connection.exec_driver_sql(statement)
    append(audit, 5)
    ledger.start()
    until(lambda: ledger.state is LedgerState.STOPPED, "the ledger stops")
    assert ledger.fault == "the database no longer says that line 0 was the last taken"
    assert rows(engine, usage) == []


UNMOVED = {
    "sqlite": ["CREATE TRIGGER unmoved BEFORE UPDATE ON journals BEGIN SELECT RAISE(IGNORE); END"],
    "postgresql": [
        "CREATE FUNCTION unmoved() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER unmoved BEFORE UPDATE ON journals FOR EACH ROW EXECUTE FUNCTION unmoved()",
    ],
}
"""Each update is taken, and does nothing."""


def test_postgresql_ends_what_a_lost_client_would_hold(cluster: Postgres, tmp_path: Path) -> None:
    """A statement, a wait for a lock, and a transaction of a client that says nothing more."""
    made = database.engine(database.url(cluster.url, tmp_path), cluster.password_file)
    with made.connect() as connection:
        told = [connection.exec_driver_sql(f"SHOW {limit}").scalar() for limit in database.POSTGRESQL_LIMITS]
    made.dispose()
    assert told == ["30s"] * 3
