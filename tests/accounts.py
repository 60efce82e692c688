"""Accounts of requests that never were, and the parts of the books that the tests of them share."""

from __future__ import annotations

from pathlib import Path

from jubako.books import journal
from jubako.books.audit import Audit
from jubako.books.verify import Verification, verify_folder
from jubako.vocabulary import Account, Outcome, Usage

STARTED_AT = 1_790_000_000.0
"""Unix seconds: 2026-09-21, 14:13:20 UTC."""


def account(number: int = 0, **changes: object) -> Account:
    """A request; two thirds are of tenant `alpha`, and every number of tokens is different."""
    values: dict[str, object] = {
        "ended_at": STARTED_AT + number * 0.25,
        "request_id": f"request-{number}",
        "tenant": "beta" if number % 3 == 2 else "alpha",
        "key_id": "key-1",
        "route": "chat_completions",
        "alias": "tiny",
        "adapter": False,
        "release": "d" * 64,
        "stream": number % 2 == 0,
        "status": 200,
        "outcome": list(Outcome)[number % len(Outcome)],
        "code": "",
        "priority": 1,
        "usage": Usage(prompt_tokens=10 + number, cached_tokens=number, generated_tokens=2 * number),
        "queue_seconds": 0.001,
        "first_token_seconds": 0.2,
        "total_seconds": 1.5,
    } | changes
    return Account(**values)  # type: ignore[arg-type]


def opened(folder: Path, *, file_bytes: int = 1 << 20, keep_files: int = 4) -> Audit:
    """An audit in `folder`."""
    return Audit.open(folder, file_bytes=file_bytes, keep_files=keep_files)


def written(folder: Path, count: int, *, file_bytes: int = 1 << 20) -> Path:
    """A closed journal of `count` lines."""
    audit = opened(folder, file_bytes=file_bytes)
    for number in range(count):
        audit.append(account(number))
    audit.close()
    return folder


def faults(folder: Path) -> list[str]:
    """What verification says."""
    return list(verify_folder(folder, Verification()))


def lines(folder: Path) -> list[bytes]:
    """Every line of the journal."""
    return b"".join(one.path.read_bytes() for one in journal.files(folder)).splitlines(keepends=True)


def only_file(folder: Path) -> Path:
    """The one file of a journal that has one."""
    (file,) = journal.files(folder)
    return file.path
