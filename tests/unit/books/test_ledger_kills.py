"""A process of the books that is killed at any moment: what it said was on record is there once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from jubako.books import database
from jubako.books.ledger import Ledger
from jubako.books.schema import usage
from tests.accounts import opened
from tests.ledgers import assert_books_agree, caught_up, rows
from tests.postgres import Postgres
from tests.project import REPOSITORY


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 20), ("postgresql", 5)])
def test_kills_lose_nothing_and_double_nothing(
    tmp_path: Path, kind: str, kills: int, request: pytest.FixtureRequest
) -> None:
    """Every request that a killed process said was on record is in the audit and in the ledger, once."""
    url, password_file = "", ""
    if kind == "postgresql":
        postgres: Postgres = request.getfixturevalue("cluster")
        url, password_file = postgres.url, str(postgres.password_file)
    engine = database.engine(
        database.url(url or None, tmp_path / "ledger.sqlite"), Path(password_file) if password_file else None
    )
    if kind == "postgresql":
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
    chance = random.Random(20)
    reported: list[str] = []
    for number in range(kills):
        # Each fourth is killed while it starts, or soon after.
        from_start = number % 4 == 3
        seconds = 0.3 + chance.random() * 1.5 if from_start else 0.02 + chance.random() * 0.6
        reported += _killed(tmp_path, url, password_file, seconds, from_start=from_start)
    audit = opened(tmp_path / "audit", file_bytes=1 << 16, keep_files=1_000_000)
    ledger = Ledger(audit, engine, row_days=None)
    ledger.start()
    caught_up(ledger, 120)
    ledger.close(10)
    audit.close()
    assert len(reported) > 1000
    booked = Counter(row["request_id"] for row in rows(engine, usage))
    assert set(reported) <= set(booked)
    assert max(booked.values()) == 1
    assert len(booked) - len(reported) <= kills, "at most the one line that was written and not yet reported, each time"
    assert_books_agree(engine, tmp_path / "audit")
    engine.dispose()


def _killed(root: Path, url: str, password_file: str, seconds: float, *, from_start: bool) -> list[str]:
    """What a child reported until it was killed, that long after its first report or its start."""
    command_line = [sys.executable, "-m", "tests.books_child", str(root), url, password_file]
    with subprocess.Popen(command_line, cwd=REPOSITORY, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        timer = threading.Timer(seconds, child.kill)
        if from_start:
            timer.start()
        first = child.stdout.readline()
        if not from_start:
            assert first, "the child did not start"
            timer.start()
        return (first + child.stdout.read()).decode().split()
