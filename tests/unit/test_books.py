"""What the books say of themselves; what they write is in the tests of audit and ledger."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from jubako.books.audit import Audit, AuditFault
from jubako.books.books import Books
from jubako.vocabulary import Outcome
from tests.accounts import account


def test_what_a_full_disk_refuses_is_not_counted_as_unrecorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is of requests that used something; an alert asks an operator to book them by hand."""
    audit = Audit.open(tmp_path / "audit", file_bytes=1 << 20, keep_files=2)
    ledger: Any = None
    books = Books(audit, ledger, None, "d" * 64)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    for outcome in Outcome:
        with pytest.raises(AuditFault):
            books.record(account(outcome=outcome))
    monkeypatch.undo()
    assert books.unrecorded == len(Outcome) - 1
    audit.close()
