"""`jubako audit verify`, as an operator types it: an intact audit is counted, a fault is told with its place."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from jubako.books import journal
from jubako.books.commands import audit as audit_command


def verify(*arguments: str | Path) -> str:
    """What the command prints, standard error included."""
    done = CliRunner().invoke(audit_command, ["verify", *map(str, arguments)])
    assert (done.exit_code == 0) == (done.exception is None)
    return f"{done.output}{done.exception or ''}"


def test_an_intact_audit_is_counted(project: Path) -> None:
    """By the project's settings, by folder, by file."""
    folder = project / ".jubako" / "books" / "audit"
    assert verify("--project", project) == "9 lines, no faults\n"
    assert verify(folder) == "9 lines, no faults\n"
    assert verify(journal.files(folder)[0].path) == "9 lines, no faults\n"


def test_a_changed_audit_is_exit_status_one_with_the_place(project: Path) -> None:
    """In the command as it is installed."""
    folder = project / ".jubako" / "books" / "audit"
    path = journal.files(folder)[0].path
    path.write_bytes(path.read_bytes().replace(b'"tenant":"beta"', b'"tenant":"meta"', 1))
    done = subprocess.run(
        [sys.executable, "-m", "jubako.cli", "audit", "verify", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{path}:3: was altered" in done.stderr
    assert "1 fault;" in done.stderr


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For who may not read it, all lines would be missing."""

    def denied(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", denied)
    told = verify("--project", project)
    assert "books/audit: cannot be read: Permission denied" in told
    assert "missing" not in told
