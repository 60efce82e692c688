"""What the books say of themselves; what they write is in the tests of audit and ledger."""

from __future__ import annotations

from typing import Any

import pytest

from jubako.books.audit import AuditFault
from jubako.books.books import Books
from jubako.vocabulary import Account, Outcome
from tests.accounts import account


class FullDisk:
    """An audit that takes nothing."""

    def append(self, account: Account) -> None:
        """As the real one does then."""
        raise AuditFault("No space left on device")


def test_what_a_full_disk_refuses_is_not_counted_as_unrecorded() -> None:
    """The count is of requests that used something; an alert asks an operator to book them by hand."""
    audit: Any = FullDisk()
    ledger: Any = None
    books = Books(audit, ledger, None, "d" * 64)
    for outcome in Outcome:
        with pytest.raises(AuditFault):
            books.record(account(outcome=outcome))
    assert books.unrecorded == len(Outcome) - 1
