"""What the tests of the books share: databases, an audit, a ledger that follows it, and a project that has them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from jubako.books import database
from jubako.books.audit import Audit
from jubako.books.ledger import Ledger
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
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        made = database.engine(database.url(None, tmp_path / "ledger.sqlite"), None)
    else:
        postgres: Postgres = request.getfixturevalue("cluster")
        made = database.engine(database.url(postgres.url, tmp_path), postgres.password_file)
        with made.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
    yield made
    made.dispose()


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    """A journal of small files."""
    made = opened(tmp_path / "audit", file_bytes=1 << 16, keep_files=2)
    yield made
    made.close()


@pytest.fixture
def ledger(audit: Audit, engine: Engine) -> Iterator[Ledger]:
    """One that follows `audit` once it is started."""
    made = Ledger(audit, engine, row_days=None)
    yield made
    made.close(10)


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced but by a test's own `sync`, however slow the machine is between two of its lines."""
    monkeypatch.setattr("jubako.books.audit.SYNC_SECONDS", 3600)


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
