"""The ledger books each line of the audit once; rows that are too old go, and their sums stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from jubako.books import journal
from jubako.books.audit import Audit
from jubako.books.ledger import Ledger
from jubako.books.schema import journals, usage, usage_daily
from jubako.books.verify import Verification, verify_folder
from tests.accounts import STARTED_AT, account, opened
from tests.ledgers import append, assert_books_agree, caught_up, rows
from tests.project import until


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
    for ledger in ledgers:
        caught_up(ledger)
    # Not before both are level: they share an engine here, and closing one drops what the other is using.
    for ledger, audit in zip(ledgers, audits, strict=True):
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


def test_what_comes_between_the_last_look_and_the_end_is_booked(
    audit: Audit, engine: Engine, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends leaves nothing to the next start that it had the time for."""
    recovered = ledger._recovered
    told: list[int] = []

    def end_now() -> None:
        recovered()
        if not told:
            append(audit, 3)
            ledger._ending.set()
        told.append(1)

    monkeypatch.setattr(ledger, "_recovered", end_now)
    ledger.start()
    until(lambda: not ledger._thread.is_alive(), "it ends by itself")
    assert ledger.lag == 0
    assert len(rows(engine, usage)) == 3


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
