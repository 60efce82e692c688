"""`jubako usage` and `jubako audit verify`, as an operator types them."""

from __future__ import annotations

import csv
import errno
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from jubako.books import database, journal
from jubako.books.commands import audit as audit_command
from jubako.books.commands import usage as usage_command
from jubako.books.ledger import Ledger
from jubako.errors import StartupFault
from jubako.vocabulary import Outcome, Usage
from tests.accounts import STARTED_AT, account, opened
from tests.postgres import Postgres, running
from tests.project import REPOSITORY

DAY_SECONDS = 86_400


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    """A PostgreSQL that is running when a test begins."""
    with running() as postgres:
        yield postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with books over three days and two months, in each kind of database."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    url, password_file = None, None
    if request.param == "postgresql":
        postgres: Postgres = request.getfixturevalue("cluster")
        url, password_file = postgres.url, postgres.password_file
        monkeypatch.setenv("JUBAKO__BOOKS__LEDGER_URL", url)
        monkeypatch.setenv("JUBAKO__BOOKS__LEDGER_PASSWORD_FILE", str(password_file))
    audit = opened(tmp_path / ".jubako" / "books" / "audit")
    engine = database.engine(database.url(url, tmp_path / ".jubako" / "books" / "ledger.sqlite"), password_file)
    if url is not None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
    for day in (0, 1, 12):
        for tenant, key, alias, tokens in (
            ("alpha", "k1", "tiny", 1000),
            ("alpha", "k2", "lora", 10),
            ("beta", "k3", "tiny", 1),
        ):
            audit.append(
                account(
                    ended_at=STARTED_AT + day * DAY_SECONDS,
                    tenant=tenant,
                    key_id=key,
                    alias=alias,
                    outcome=Outcome.COMPLETED if day else Outcome.CANCELLED,
                    usage=Usage(prompt_tokens=tokens, cached_tokens=0, generated_tokens=2 * tokens),
                )
            )
    audit.sync()
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    ledger.close(30)
    audit.close()
    return tmp_path


def usage(project: Path, *arguments: str) -> str:
    """What the command prints."""
    done = CliRunner().invoke(usage_command, ["--project", str(project), *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def asked(project: Path, *arguments: str) -> list[dict[str, object]]:
    """The same as data."""
    rows: list[dict[str, object]] = json.loads(usage(project, "--format", "json", *arguments))
    return rows


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "a%b é"])
def test_a_folder_of_any_name_is_read_and_no_other_is_made(tmp_path: Path, name: str) -> None:
    """Its characters mean nothing but themselves; reading stays reading."""
    root = tmp_path / name
    shutil.copytree(REPOSITORY / "configuration", root / "configuration")
    audit = opened(root / ".jubako" / "books" / "audit")
    audit.append(account(usage=Usage(prompt_tokens=7, cached_tokens=0, generated_tokens=3)))
    audit.sync()
    ledger = Ledger(
        audit, database.engine(database.url(None, root / ".jubako" / "books" / "ledger.sqlite"), None), row_days=None
    )
    ledger.start()
    ledger.close(30)
    audit.close()
    assert [row["prompt_tokens"] for row in asked(root)] == [7]
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_without_options_days_and_tenants_are_summed(project: Path) -> None:
    """In order, with outcomes and tokens."""
    rows = asked(project)
    assert [(row["day"], row["tenant"]) for row in rows] == [
        (day, tenant) for day in ("2026-09-21", "2026-09-22", "2026-10-03") for tenant in ("alpha", "beta")
    ]
    assert rows[0] == {
        "day": "2026-09-21",
        "tenant": "alpha",
        "requests": 2,
        "completed": 0,
        "length": 0,
        "cancelled": 2,
        "deadline": 0,
        "refused": 0,
        "failed": 0,
        "prompt_tokens": 1010,
        "cached_tokens": 0,
        "generated_tokens": 2020,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--by", "tenant"], [("alpha", 3030), ("beta", 3)]),
        (["--by", "month"], [("2026-09", 2022), ("2026-10", 1011)]),
        (["--by", "key"], [("k1", 3000), ("k2", 30), ("k3", 3)]),
        (["--by", "alias"], [("lora", 30), ("tiny", 3003)]),
        (["--by", "alias", "--tenant", "alpha"], [("lora", 30), ("tiny", 3000)]),
        (["--by", "tenant", "--key", "k2", "--key", "k3"], [("alpha", 30), ("beta", 3)]),
        (["--by", "tenant", "--from", "2026-09-22"], [("alpha", 2020), ("beta", 2)]),
        (["--by", "tenant", "--to", "2026-09-22"], [("alpha", 2020), ("beta", 2)]),
        (["--by", "tenant", "--from", "2026-09-22", "--to", "2026-09-22"], [("alpha", 1010), ("beta", 1)]),
        (["--by", "tenant", "--tenant", "nobody"], []),
        (["--by", "month", "--by", "tenant", "--tenant", "beta"], [("2026-09", "beta", 2), ("2026-10", "beta", 1)]),
        (["--by", "month", "--by", "day", "--tenant", "beta", "--to", "2026-09-21"], [("2026-09", "2026-09-21", 1)]),
    ],
)
def test_sums_are_of_what_was_asked_for(
    project: Path, arguments: list[str], expected: list[tuple[object, ...]]
) -> None:
    """Groups in the order of `--by`, both days included."""
    by = [following for one, following in itertools.pairwise(arguments) if one == "--by"]
    assert [(*(row[name] for name in by), row["prompt_tokens"]) for row in asked(project, *arguments)] == expected


def test_the_three_formats_say_the_same(project: Path) -> None:
    """CSV with a header, a table with a total."""
    rows = asked(project, "--by", "tenant")
    read = list(csv.DictReader(io.StringIO(usage(project, "--by", "tenant", "--format", "csv"))))
    assert read == [{name: str(value) for name, value in row.items()} for row in rows]
    table = usage(project, "--by", "tenant").splitlines()
    assert table[0].split()[:3] == ["tenant", "requests", "completed"]
    assert table[1].split()[:2] == ["alpha", "6"]
    assert table[-1].split() == ["total", "9", "6", "0", "3", "0", "0", "0", "3,033", "0", "6,066"]


def test_an_empty_answer_is_an_answer(project: Path) -> None:
    """With headings."""
    assert asked(project, "--tenant", "nobody") == []
    assert len(usage(project, "--tenant", "nobody", "--format", "csv").splitlines()) == 1
    assert usage(project, "--tenant", "nobody").splitlines()[-1].split()[:3] == ["total", "-", "0"]


def test_what_is_not_booked_yet_is_said(project: Path) -> None:
    """The sums alone would look complete."""
    audit = opened(project / ".jubako" / "books" / "audit")
    audit.append(account())
    audit.close()
    done = CliRunner().invoke(usage_command, ["--project", str(project)], catch_exceptions=False)
    assert "1 requests of this server's audit are not in the ledger yet" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["--from", "yesterday"], ["--by", "week"], ["--from", "2026-02-02", "--to", "2026-02-01"]]
)
def test_wrong_usage_is_status_two(tmp_path: Path, arguments: list[str]) -> None:
    """As for every command."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    assert CliRunner().invoke(usage_command, ["--project", str(tmp_path), *arguments]).exit_code == 2


def test_a_ledger_that_is_not_there_is_a_plain_fault(tmp_path: Path) -> None:
    """And none is made by asking."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    with pytest.raises(StartupFault, match="there is no ledger yet"):
        usage(tmp_path)
    assert not (tmp_path / ".jubako").exists()


def test_a_database_that_is_away_is_a_plain_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a traceback, and without a password."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    (tmp_path / "password").write_text("secret-word")
    monkeypatch.setenv("JUBAKO__BOOKS__LEDGER_URL", "postgresql+psycopg://jubako@127.0.0.1:1/nothing")
    monkeypatch.setenv("JUBAKO__BOOKS__LEDGER_PASSWORD_FILE", str(tmp_path / "password"))
    with pytest.raises(StartupFault, match="the ledger cannot be read") as raised:
        usage(tmp_path)
    assert "secret-word" not in str(raised.value)


def test_a_database_of_another_version_is_a_plain_fault(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading changes nothing in it."""
    monkeypatch.setattr(database, "is_current", lambda _: False)
    with pytest.raises(StartupFault, match="earlier version"):
        usage(project)


def test_ids_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """An identity provider's subject may hold anything."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    audit = opened(tmp_path / ".jubako" / "books" / "audit")
    audit.append(account(key_id="\x1b[2J"))
    audit.sync()
    ledger = Ledger(
        audit,
        database.engine(database.url(None, tmp_path / ".jubako" / "books" / "ledger.sqlite"), None),
        row_days=None,
    )
    ledger.start()
    ledger.close(30)
    audit.close()
    assert "\x1b" not in usage(tmp_path, "--by", "key")
    assert "\\x1b[2J" in usage(tmp_path, "--by", "key")


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


# -- audit verify


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


# -- what is wrong is said, with its place and a status


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


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For who may not read it, all lines would be missing."""

    def denied(path: Path) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", denied)
    told = verify("--project", project)
    assert "books/audit: cannot be read: Permission denied" in told
    assert "missing" not in told


def test_days_that_have_not_begun_are_told_apart_from_days_without_use(project: Path) -> None:
    """The answer is empty either way, and right."""
    done = CliRunner().invoke(usage_command, ["--project", str(project), "--from", "9999-12-31", "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == []
    assert "9999-12-31 has not begun: days are UTC" in done.stderr
