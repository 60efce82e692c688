"""`jubako usage`, as an operator types it: sums of what was asked for, in three formats."""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from jubako.books import database
from jubako.books.commands import usage as usage_command
from jubako.books.ledger import Ledger
from jubako.errors import StartupFault
from jubako.vocabulary import Usage
from tests.accounts import account, opened
from tests.project import REPOSITORY


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


def test_days_that_have_not_begun_are_told_apart_from_days_without_use(project: Path) -> None:
    """The answer is empty either way, and right."""
    done = CliRunner().invoke(usage_command, ["--project", str(project), "--from", "9999-12-31", "--format", "json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == []
    assert "9999-12-31 has not begun: days are UTC" in done.stderr


# -- what cannot be answered


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
