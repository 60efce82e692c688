"""What the tests of the ledger share: lines for it, a wait until all is booked, and the audit's own sums to compare."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from jubako.books import journal
from jubako.books.audit import Audit
from jubako.books.ledger import Ledger, LedgerState
from jubako.books.line import fields
from jubako.books.schema import COUNTS, TOKENS, usage, usage_daily
from jubako.books.verify import Verification, verify_folder
from jubako.sections import BooksSettings
from tests.accounts import account
from tests.project import until


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
