"""A server that does nothing but keep books, as fast as it can, until it is killed. Started by a test."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from jubako.books.books import Books
from jubako.sections import BooksSettings
from tests.accounts import account

BURST = 20
BETWEEN_SECONDS = 0.005
"""So that the ledger, which takes half of a processor at most, is neither idle nor hopelessly behind."""


def main(root: Path, url: str | None, password_file: Path | None) -> None:
    """Record accounts, and report each on standard output once it is on record."""
    settings = BooksSettings(
        audit_folder=Path("audit"),
        audit_file_bytes=1 << 16,
        audit_files=1_000_000,
        audit_standard_output=False,
        ledger_sqlite_file=Path("ledger.sqlite"),
        ledger_url=url,
        ledger_password_file=password_file,
        ledger_row_days=None,
    )
    books = Books.open(settings, root, "d" * 64)
    number = 0
    while True:
        for _ in range(BURST):
            number += 1
            request_id = f"{os.getpid()}-{number}"
            books.record(account(number, request_id=request_id))
            os.write(1, f"{request_id}\n".encode())
        time.sleep(BETWEEN_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] or None, Path(sys.argv[3]) if sys.argv[3] else None)
