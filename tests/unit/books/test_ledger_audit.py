"""What the ledger does of an audit that was changed or cannot be read, and of a note of what is booked."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
from sqlalchemy.engine import Engine

from jubako.books import database, journal
from jubako.books.audit import Audit
from jubako.books.ledger import Ledger, LedgerState
from jubako.books.schema import journals, usage
from tests.ledgers import append, assert_books_agree, caught_up, rows
from tests.project import until


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
