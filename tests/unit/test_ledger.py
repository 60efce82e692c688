"""The ledger: whatever is killed or away, each line of the audit is booked once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.engine import Connection, Engine

from jubako.books import booking, database, journal
from jubako.books.audit import Audit, AuditFault
from jubako.books.books import Books
from jubako.books.echo import Echo
from jubako.books.ledger import Ledger, LedgerState
from jubako.books.line import fields
from jubako.books.schema import COUNTS, TOKENS, journals, metadata, usage, usage_daily
from jubako.books.verify import Verification, verify_folder
from jubako.errors import StartupFault, Unavailable
from jubako.sections import BooksSettings
from jubako.vocabulary import Outcome
from tests.accounts import STARTED_AT, account, opened
from tests.postgres import PASSWORD, Postgres, running
from tests.project import REPOSITORY, until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    """A PostgreSQL that is running when a test begins."""
    with running() as postgres:
        yield postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        made = database.engine(database.url(None, tmp_path / "ledger.sqlite"), None)
    else:
        postgres: Postgres = request.getfixturevalue("cluster")
        made = database.engine(database.url(postgres.url, tmp_path), postgres.password_file)
        with made.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
    yield made
    made.dispose()


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    """A journal of small files."""
    made = opened(tmp_path / "audit", file_bytes=1 << 16, keep_files=2)
    yield made
    made.close()


@pytest.fixture
def ledger(audit: Audit, engine: Engine) -> Iterator[Ledger]:
    """One that follows `audit` once it is started."""
    made = Ledger(audit, engine, row_days=None)
    yield made
    made.close(10)


def append(audit: Audit, count: int, first: int = 0) -> None:
    """Some lines, known to be on disk."""
    for number in range(first, first + count):
        audit.append(account(number))
    audit.sync()


def caught_up(ledger: Ledger, seconds: float = 60) -> None:
    """Wait until everything is booked."""

    def level() -> bool:
        assert ledger.state is not LedgerState.STOPPED, ledger.fault
        return ledger.lag == 0 and ledger.state is LedgerState.FOLLOWING

    until(level, f"the ledger is level ({ledger.fault})", seconds)


def rows(engine: Engine, table: sa.Table) -> list[dict[str, Any]]:
    """Everything in a table."""
    with engine.connect() as connection:
        return [dict(row._mapping) for row in connection.execute(sa.select(table))]


def audited(folder: Path) -> list[dict[str, Any]]:
    """Everything in the audit."""
    return [fields(line) for one in journal.files(folder) for line in one.path.read_bytes().splitlines(keepends=True)]


def assert_books_agree(engine: Engine, folder: Path) -> None:
    """The audit, the ledger's rows and its sums say the same."""
    lines = audited(folder)
    booked = rows(engine, usage)
    assert sorted(row["sequence"] for row in booked) == [line["sequence"] for line in lines]
    by_sequence = {row["sequence"]: row for row in booked}
    for line in lines:
        row = by_sequence[line["sequence"]]
        assert row | {"ended_at": None} == {name: line.get(name) for name in row}
        assert row["ended_at"] == line["time"]
    sums: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        group = (line["time"][:10], line["tenant"], line["key_id"], line["alias"])
        sums[(*group, "requests")] += 1
        sums[(*group, line["outcome"])] += 1
        for name in TOKENS:
            sums[(*group, name)] += line[name]
    told: Counter[tuple[str, ...]] = Counter()
    for row in rows(engine, usage_daily):
        for name in (*COUNTS, *TOKENS):
            told[(row["day"], row["tenant"], row["key_id"], row["alias"], name)] = row[name]
    assert +told == +sums
    assert list(verify_folder(folder, Verification())) == []


# -- booking


def test_every_line_is_booked_once_across_files_and_starts(audit: Audit, engine: Engine) -> None:
    """What one ledger left, the next goes on with."""
    for start in range(3):
        append(audit, 300, first=start * 300)
        ledger = Ledger(audit, engine, row_days=None)
        ledger.start()
        append(audit, 20, first=10_000 + start * 20)
        ledger.close(30)
        assert ledger.lag == 0
        assert ledger.behind_seconds == 0
    taken = rows(engine, journals)
    assert [(row["journal"], row["sequence"]) for row in taken] == [(audit.journal, 960)]
    assert len(rows(engine, usage)) == 960
    assert sum(row["requests"] for row in rows(engine, usage_daily)) == 960


def test_rows_and_sums_are_what_the_audit_says(tmp_path: Path, engine: Engine) -> None:
    """Field by field."""
    audit = opened(tmp_path / "all", file_bytes=1 << 16, keep_files=100)
    append(audit, 500)
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    ledger.close(30)
    assert_books_agree(engine, audit.folder)
    audit.close()


@pytest.mark.parametrize(
    "text", ["\0", "a\0b", "\ud800", "\U0001f371", "'; DROP TABLE usage; --", "\x1b[31m", "%(x)s :y"]
)
def test_no_id_stops_the_ledger(audit: Audit, engine: Engine, ledger: Ledger, text: str) -> None:
    """One poisoned line would stop all that come after it."""
    audit.append(account(tenant=text, key_id=text, alias=text, request_id=text))
    append(audit, 1)
    ledger.start()
    caught_up(ledger)
    assert len(rows(engine, usage)) == 2


def test_two_servers_book_into_one_database(tmp_path: Path, engine: Engine) -> None:
    """Replicas share a database; each has an audit of its own, and their days add up."""
    audits = [opened(tmp_path / name) for name in ("one", "two")]
    ledgers = [Ledger(audit, engine, row_days=None) for audit in audits]
    for ledger in ledgers:
        ledger.start()
    for burst in range(20):
        for audit in audits:
            append(audit, 20, first=burst * 20)
    for ledger, audit in zip(ledgers, audits, strict=True):
        caught_up(ledger)
        ledger.close(10)
        audit.close()
    assert len(rows(engine, usage)) == 800
    assert sum(row["requests"] for row in rows(engine, usage_daily)) == 800


def test_lines_that_a_power_cut_could_take_are_not_booked(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the database would be ahead of its own journal after it."""
    monkeypatch.setattr("jubako.books.audit.SYNC_SECONDS", 3600)  # nothing is on disk but by our own `sync`
    audit = opened(tmp_path / "audit")
    append(audit, 5)
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    caught_up(ledger)
    durable = audit.durable
    audit.append(account(6))
    rounds: list[int] = []
    monkeypatch.setattr(ledger, "_forget", lambda: rounds.append(1))  # once a round that found nothing to book
    until(lambda: len(rounds) >= 2, "the ledger looks, and looks again")
    assert audit.durable == durable
    assert ledger.lag == 1
    assert len(rows(engine, usage)) == 5
    audit.sync()
    caught_up(ledger)
    assert len(rows(engine, usage)) == 6
    ledger.close(10)
    audit.close()


def test_files_go_once_they_are_booked_and_not_before(audit: Audit, engine: Engine, ledger: Ledger) -> None:
    """The backlog is the files."""
    append(audit, 1000)
    assert len(journal.files(audit.folder)) > 5
    ledger.start()
    caught_up(ledger)
    until(lambda: len(journal.files(audit.folder)) == 2, "old files are removed")
    assert len(rows(engine, usage)) == 1000
    assert list(verify_folder(audit.folder, Verification())) == []


# -- rows that are too old


def test_old_rows_go_and_their_sums_stay(
    audit: Audit, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole days of them, some at a time; what is younger stays, and so does what was used."""
    monkeypatch.setattr("jubako.books.ledger.FORGET_ROWS", 7)
    caplog.set_level("INFO")
    day = 86_400
    for number in range(90):
        audit.append(account(number, ended_at=STARTED_AT + (number // 30) * day))
    audit.sync()
    ledger = Ledger(audit, engine, row_days=1, now=lambda: STARTED_AT + 2 * day + 60)
    ledger.start()
    until(lambda: "are deleted" in caplog.text, "old rows are deleted")
    ledger.close(10)
    assert "ledger: 30 rows of days before 2026-09-22 are deleted" in caplog.text
    assert sorted(row["sequence"] for row in rows(engine, usage)) == list(range(31, 91))
    assert sum(row["requests"] for row in rows(engine, usage_daily)) == 90
    append(audit, 1, first=90)
    again = Ledger(audit, engine, row_days=None)
    again.start()
    caught_up(again)
    again.close(10)
    assert len(rows(engine, usage)) == 61


def test_two_servers_delete_old_rows_of_one_database(tmp_path: Path, engine: Engine) -> None:
    """Those of servers that are gone too; neither stops the other."""
    audits = [opened(tmp_path / name) for name in ("one", "two", "gone")]
    for audit in audits:
        append(audit, 300)
    keeper = Ledger(audits[2], engine, row_days=None)
    keeper.start()
    caught_up(keeper)
    keeper.close(10)
    ledgers = [Ledger(audit, engine, row_days=1, now=lambda: STARTED_AT + 30 * 86_400) for audit in audits[:2]]
    for ledger in ledgers:
        ledger.start()
    for ledger in ledgers:
        caught_up(ledger)
    # One that was level before the other had booked its own lines leaves those to the other one.
    until(lambda: rows(engine, usage) == [], "all old rows are deleted")
    for ledger, audit in zip([*ledgers, keeper], audits, strict=True):
        ledger.close(10)
        audit.close()
    assert sum(row["requests"] for row in rows(engine, usage_daily)) == 900


# -- an audit that is not as it was written


@pytest.mark.parametrize(
    "harm",
    [lambda data: data.replace(b'"prompt_tokens":60', b'"prompt_tokens":10'), lambda data: data[2000:], lambda _: b""],
)
def test_forged_lines_are_not_booked(
    audit: Audit, engine: Engine, ledger: Ledger, caplog: pytest.LogCaptureFixture, harm: Callable[[bytes], bytes]
) -> None:
    """The ledger stops, says where, and the audit's files stay."""
    append(audit, 100)
    path = journal.files(audit.folder)[0].path
    path.write_bytes(harm(path.read_bytes()))
    ledger.start()
    until(lambda: ledger.state is LedgerState.STOPPED, "the ledger stops")
    assert str(path) in ledger.fault
    assert "ledger: stopped" in caplog.text
    assert all(row["sequence"] < 51 for row in rows(engine, usage))
    assert ledger.lag > 0


def test_an_audit_that_was_cut_after_it_was_booked_is_noticed(audit: Audit, engine: Engine) -> None:
    """The database is a second anchor."""
    append(audit, 50)
    first = Ledger(audit, engine, row_days=None)
    first.start()
    caught_up(first)
    first.close(10)
    with engine.begin() as connection:
        connection.execute(journals.update().values(hash="0" * 64))
    second = Ledger(audit, engine, row_days=None)
    second.start()
    until(lambda: second.state is LedgerState.STOPPED, "the ledger stops")
    assert "is not the line that was taken from here before" in second.fault
    second.close(10)


# -- a database that is away


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


@pytest.mark.parametrize(
    "note", ["", "7", "{}", '{"journal":"another","sequence":9}', '{"journal":"$","sequence":null}']
)
def test_a_note_of_what_is_booked_that_says_nothing_is_passed_over(audit: Audit, engine: Engine, note: str) -> None:
    """It is one number on a panel, and no reason to refuse a start."""
    append(audit, 9)
    (audit.folder / "booked.json").write_text(note.replace("$", audit.journal))
    ledger = Ledger(audit, engine, row_days=None)
    assert ledger.lag == 9
    ledger.start()
    caught_up(ledger)
    ledger.close(10)
    assert journal.read_booked(audit.folder, audit.journal) == 9


def test_a_note_of_what_is_booked_yields_to_the_database(audit: Audit, engine: Engine) -> None:
    """A new database begins at the first line, whatever the last one had."""
    database.migrate(engine)
    append(audit, 9)
    journal.write_booked(audit.folder, audit.journal, 9)
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    until(lambda: len(rows(engine, journals)) == 1 and rows(engine, journals)[0]["sequence"] == 9, "all is booked")
    ledger.close(10)
    assert_books_agree(engine, audit.folder)


# -- an audit's folder that is away


def test_an_audit_that_cannot_be_read_is_not_taken_for_the_database(
    audit: Audit, engine: Engine, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever reads the log looks in the right place; it is waited for all the same."""
    append(audit, 9)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "the/file")

    monkeypatch.setattr("jubako.books.ledger.Reader", broken)
    ledger.start()
    until(lambda: ledger.state is LedgerState.WAITING and bool(ledger.fault), "the ledger waits")
    assert ledger.fault == "the/file: Input/output error"
    monkeypatch.undo()
    caught_up(ledger)
    assert "ledger: the audit cannot be read: the/file" in caplog.text
    assert "the database cannot be used" not in caplog.text
    assert len(rows(engine, usage)) == 9


def test_a_folder_that_cannot_be_written_stops_no_booking(
    audit: Audit, engine: Engine, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database has everything, the log says why old files stay, and they go as soon as they can."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "head.json.new")

    append(audit, 500)
    monkeypatch.setattr(audit, "prune", full)
    ledger.start()
    caught_up(ledger)
    append(audit, 500, first=500)
    caught_up(ledger)
    assert ledger.fault == ""
    assert len(rows(engine, usage)) == 1000
    assert len(journal.files(audit.folder)) > 5
    assert caplog.text.count("head.json.new: No space left on device; old audit files stay") == 1
    assert "database" not in caplog.text
    monkeypatch.undo()
    until(lambda: len(journal.files(audit.folder)) == 2, "old files are removed")
    until(lambda: "can be written again" in caplog.text, "the log says so")


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


# -- kill -9


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 20), ("postgresql", 5)])
def test_kills_lose_nothing_and_double_nothing(
    tmp_path: Path, kind: str, kills: int, request: pytest.FixtureRequest
) -> None:
    """Every request that a killed process said was on record is in the audit and in the ledger, once."""
    url, password_file = "", ""
    if kind == "postgresql":
        postgres: Postgres = request.getfixturevalue("cluster")
        url, password_file = postgres.url, str(postgres.password_file)
    engine = database.engine(
        database.url(url or None, tmp_path / "ledger.sqlite"), Path(password_file) if password_file else None
    )
    if kind == "postgresql":
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
    chance = random.Random(20)
    reported: list[str] = []
    for number in range(kills):
        # Each fourth is killed while it starts, or soon after.
        from_start = number % 4 == 3
        seconds = 0.3 + chance.random() * 1.5 if from_start else 0.02 + chance.random() * 0.6
        reported += _killed(tmp_path, url, password_file, seconds, from_start=from_start)
    audit = opened(tmp_path / "audit", file_bytes=1 << 16, keep_files=1_000_000)
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    caught_up(ledger, 120)
    ledger.close(10)
    audit.close()
    assert len(reported) > 1000
    booked = Counter(row["request_id"] for row in rows(engine, usage))
    assert set(reported) <= set(booked)
    assert max(booked.values()) == 1
    assert len(booked) - len(reported) <= kills, "at most the one line that was written and not yet reported, each time"
    assert_books_agree(engine, tmp_path / "audit")
    engine.dispose()


def _killed(root: Path, url: str, password_file: str, seconds: float, *, from_start: bool) -> list[str]:
    """What a child reported until it was killed, that long after its first report or its start."""
    command_line = [sys.executable, "-m", "tests.books_child", str(root), url, password_file]
    with subprocess.Popen(command_line, cwd=REPOSITORY, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        timer = threading.Timer(seconds, child.kill)
        if from_start:
            timer.start()
        first = child.stdout.readline()
        if not from_start:
            assert first, "the child did not start"
            timer.start()
        return (first + child.stdout.read()).decode().split()


# -- migrations


def test_the_migrations_make_the_tables_that_the_code_means(engine: Engine) -> None:
    """Two statements of one thing, held together."""
    database.migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert set(COUNTS) == {"requests", *(outcome.value for outcome in Outcome)}


def test_a_database_of_version_one_keeps_its_data(audit: Audit, engine: Engine, ledger: Ledger) -> None:
    """Its days are summed from its requests, and the ledger goes on where it was."""
    append(audit, 60)
    with engine.begin() as connection:
        config = database._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    lines = audited(audit.folder)
    booked = [{name: line.get(name) for name in usage.c.keys()} | {"ended_at": line["time"]} for line in lines[:40]]  # noqa: SIM118
    with engine.begin() as connection:
        connection.execute(usage.insert(), booked)
        values = {"journal": audit.journal, "sequence": 40, "hash": lines[39]["hash"]}
        connection.execute(journals.insert(), [values])
    ledger.start()
    caught_up(ledger)
    assert_books_agree(engine, audit.folder)


def test_a_newer_database_is_left_alone(audit: Audit, engine: Engine, ledger: Ledger) -> None:
    """An older server must not write what a newer one would read otherwise."""
    database.migrate(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(database.NewerDatabase, match="version 9999"):
        database.migrate(engine)
    append(audit, 1)
    ledger.start()
    until(lambda: ledger.state is LedgerState.STOPPED, "the ledger stops")
    assert rows(engine, usage) == []


def test_two_processes_may_migrate_at_once(engine: Engine, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Replicas that start together with an empty database."""
    url, password_file = "None", "None"
    if engine.dialect.name == "postgresql":
        postgres: Postgres = request.getfixturevalue("cluster")
        url, password_file = repr(postgres.url), f"Path({str(postgres.password_file)!r})"
    script = (
        "import sys; from pathlib import Path; from jubako.books import database;"
        f"made = database.engine(database.url({url}, Path({str(tmp_path / 'ledger.sqlite')!r})), {password_file});"
        "print('here', flush=True); sys.stdin.readline(); database.migrate(made)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    with engine.connect() as connection:
        assert database.is_current(connection)


# -- settings


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


def settings(**changes: Any) -> BooksSettings:
    """The books' settings, with `changes`."""
    values = {
        "audit_folder": Path("books/audit"),
        "audit_file_bytes": 1 << 16,
        "audit_files": 4,
        "audit_standard_output": False,
        "ledger_sqlite_file": Path("books/ledger.sqlite"),
        "ledger_url": None,
        "ledger_password_file": None,
        "ledger_row_days": None,
    }
    return BooksSettings.model_validate(values | changes)


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


def test_the_audit_is_copied_to_standard_output_too(tmp_path: Path) -> None:
    """Byte for byte, so that it can be verified where it is collected."""
    script = (
        "import asyncio; from pathlib import Path; from tests.unit.test_ledger import settings, Books, account;"
        f"books = Books.open(settings(audit_standard_output=True), Path({str(tmp_path)!r}), '');"
        "[books.record(account(number)) for number in range(500)]; asyncio.run(books.close())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 501))
    assert lines[-1] == audited(tmp_path / "books" / "audit")[-1]


def test_a_reader_of_standard_output_who_stops_holds_nothing_up(tmp_path: Path) -> None:
    """The pipe is full after the first hundred lines; five thousand are recorded all the same."""
    script = (
        "from pathlib import Path; from tests.unit.test_ledger import settings, Books, account; import sys;"
        f"books = Books.open(settings(audit_standard_output=True), Path({str(tmp_path)!r}), '');"
        "[books.record(account(number)) for number in range(5000)]; sys.stderr.write('done'); sys.stderr.flush();"
        "sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stderr is not None
        assert child.stderr.read(4) == b"done"
        child.kill()
    assert len(audited(tmp_path / "books" / "audit")) >= 400


def test_a_copy_that_was_overtaken_goes_on_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files are not kept for a reader of standard output who takes nothing; who comes back gets what is kept."""
    audit = opened(tmp_path, file_bytes=1 << 13, keep_files=2)
    out, into = os.pipe()
    os.set_blocking(out, False)
    echo = Echo(tmp_path, audit.journal, audit.position, into)
    append(audit, 1000)
    copied = b""

    def read() -> bytes:
        nonlocal copied
        with contextlib.suppress(BlockingIOError):
            copied += os.read(out, 1 << 16)
        return copied

    until(lambda: b'"sequence":1,' in read(), "the copy begins")
    audit.prune(1000)
    until(lambda: b'"sequence":1000,' in read(), "the copy goes on")
    sequences = [json.loads(line)["sequence"] for line in copied.splitlines()]
    (gap,) = [(a, b) for a, b in itertools.pairwise(sequences) if b != a + 1]
    assert f"lines {gap[0] + 1} to {gap[1] - 1} were not copied" in caplog.text
    assert gap[1] == journal.files(tmp_path)[0].first
    echo.close(10)
    audit.close()
    os.close(out)
    os.close(into)


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
