"""The books' commands as they are installed: light to start, and each fault in one line with its place and a status."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import REPOSITORY


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A project that has settings and no books."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    (tmp_path / ".jubako" / "books").mkdir(parents=True)
    return tmp_path


def installed(project: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """Exit status and standard error of the command as it is installed."""
    done = subprocess.run(
        [sys.executable, "-m", "jubako.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=project,
        env=os.environ | {f"JUBAKO__BOOKS__{name}": value for name, value in settings.items()},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["usage"], 1, "ledger.sqlite: there is no ledger yet"),
        (["usage", "--from", "2026-02-30"], 2, "'2026-02-30' does not match the format"),
        (["usage", "--from", "2026-03-01", "--to", "2026-02-01"], 2, "2026-02-01 is before 2026-03-01"),
        (["usage", "--project", "nowhere"], 2, "'nowhere' does not exist"),
        (["audit", "verify"], 1, "audit: there is no audit yet"),
        (["audit", "verify", "nowhere"], 2, "'nowhere' does not exist"),
        (["audit", "verify", "/dev/null"], 1, "/dev/null: is neither a file nor a folder"),
        (["audit", "verify", "configuration/server.yaml"], 1, "server.yaml:1: is not a whole line of an audit"),
        (["audit", "verify", "configuration"], 1, "configuration: no head.json"),
    ],
)
def test_wrong_arguments_and_places_are_told(empty: Path, arguments: list[str], status: int, said: str) -> None:
    """Status 2 for what was typed, 1 for what was found."""
    found, told = installed(empty, *arguments)
    assert (found, said in told) == (status, True), told


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"LEDGER_URL": "nonsense"}, "books.ledger_url: is not a URL"),
        ({"LEDGER_URL": "postgresql+psycopg://u@127.0.0.1:1/x"}, "books.ledger_url: the ledger cannot be read: "),
        (
            {"LEDGER_URL": "postgresql+psycopg://u@127.0.0.1:1/x", "LEDGER_PASSWORD_FILE": "nowhere"},
            "books.ledger_password_file: ",
        ),
        ({"LEDGER_SQLITE_FILE": "configuration"}, "configuration: the ledger cannot be read: Is a directory"),
        (
            {"LEDGER_SQLITE_FILE": "configuration/server.yaml"},
            "server.yaml: the ledger cannot be read: file is not a database",
        ),
    ],
)
def test_a_ledger_that_cannot_be_read_is_named(empty: Path, settings: dict[str, str], said: str) -> None:
    """By its setting or its file, in one line."""
    status, told = installed(empty, "usage", **settings)
    assert (status, said in told, told.count("\n")) == (1, True, 1), told


@pytest.mark.parametrize("command", [["usage"], ["audit", "verify"]])
def test_neither_command_imports_the_engine(tmp_path: Path, command: list[str]) -> None:
    """Nor a web framework; the audit needs no database library either."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    heavy = ["vllm", "bentoml", "torch", "starlette", *([] if command == ["usage"] else ["sqlalchemy"])]
    script = (
        f"import sys; from jubako.cli import jubako; sys.argv = ['jubako', *{command}]\n"
        "try: jubako(standalone_mode=False)\n"
        "except Exception as error: print(error)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "there is no" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
