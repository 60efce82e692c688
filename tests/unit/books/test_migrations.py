"""The ledger's tables in each version: made as the code means them, brought forward with their data, never backward."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.engine import Engine

from jubako.books import database
from jubako.books.audit import Audit
from jubako.books.ledger import Ledger, LedgerState
from jubako.books.schema import COUNTS, journals, metadata, usage
from jubako.vocabulary import Outcome
from tests.ledgers import append, assert_books_agree, audited, caught_up, rows
from tests.postgres import Postgres
from tests.project import until


def test_the_migrations_make_the_tables_that_the_code_means(engine: Engine) -> None:
    """Two statements of one thing, held together."""
    database.migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert set(COUNTS) == {"requests", *(outcome.value for outcome in Outcome)}


def test_a_database_of_version_one_keeps_its_data(audit: Audit, engine: Engine, ledger: Ledger) -> None:
    """Its days are summed from its requests, and the ledger goes on where it was."""
    append(audit, 60)
    with engine.begin() as connection:
        config = database._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    lines = audited(audit.folder)
    booked = [{name: line.get(name) for name in usage.c.keys()} | {"ended_at": line["time"]} for line in lines[:40]]  # noqa: SIM118
    with engine.begin() as connection:
        connection.execute(usage.insert(), booked)
        values = {"journal": audit.journal, "sequence": 40, "hash": lines[39]["hash"]}
        connection.execute(journals.insert(), [values])
    ledger.start()
    caught_up(ledger)
    assert_books_agree(engine, audit.folder)


def test_a_newer_database_is_left_alone(audit: Audit, engine: Engine, ledger: Ledger) -> None:
    """An older server must not write what a newer one would read otherwise."""
    database.migrate(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(database.NewerDatabase, match="version 9999"):
        database.migrate(engine)
    append(audit, 1)
    ledger.start()
    until(lambda: ledger.state is LedgerState.STOPPED, "the ledger stops")
    assert rows(engine, usage) == []


def test_two_processes_may_migrate_at_once(engine: Engine, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Replicas that start together with an empty database."""
    url, password_file = "None", "None"
    if engine.dialect.name == "postgresql":
        postgres: Postgres = request.getfixturevalue("cluster")
        url, password_file = repr(postgres.url), f"Path({str(postgres.password_file)!r})"
    script = (
        "import sys; from pathlib import Path; from jubako.books import database;"
        f"made = database.engine(database.url({url}, Path({str(tmp_path / 'ledger.sqlite')!r})), {password_file});"
        "print('here', flush=True); sys.stdin.readline(); database.migrate(made)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
        assert child.returncode == 0
    with engine.connect() as connection:
        assert database.is_current(connection)
