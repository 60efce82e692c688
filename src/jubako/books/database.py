"""The ledger's database: how it is reached, and that it has this version's tables.

Owns what differs between SQLite and PostgreSQL. Passwords come from a mounted file, read at each connection, and are
in no URL, message or log. Knows nothing of audits.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection, Engine, make_url

from jubako.errors import StartupFault

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x6A7562616B6F
"""PostgreSQL's advisory lock of a migration: the letters of `jubako`."""
SQLITE_BUSY_SECONDS = 5.0
AGAIN_SECONDS = 0.01
CONNECT_SECONDS = 5
STATEMENT_SECONDS = 30
POSTGRESQL_LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
"""The last one ends what a client that is stopped or cut off would hold locked."""
POSTGRESQL = "postgresql+psycopg"


class NewerDatabase(StartupFault):
    """The database was brought to a version that this code does not know; to go on would be to guess."""


def url(text: str | None, sqlite_file: Path) -> URL:
    """The database that the settings mean; raises `StartupFault`."""
    if text is None:
        return URL.create("sqlite", database=str(sqlite_file))
    try:
        parsed = make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise StartupFault("books.ledger_url: is not a URL; write postgresql+psycopg://user@host/database") from None
    if parsed.drivername != POSTGRESQL:
        raise StartupFault(
            f"books.ledger_url: {parsed.drivername}: must begin with {POSTGRESQL}://; "
            "for SQLite leave it null and set books.ledger_sqlite_file"
        )
    if parsed.password is not None or "password" in parsed.query:
        raise StartupFault(
            "books.ledger_url: a password does not belong here: name a file in books.ledger_password_file"
        )
    return parsed


def engine(address: URL, password_file: Path | None, *, read_only: bool = False) -> Engine:
    """Connections to the database; none is made yet."""
    if address.get_backend_name() == "sqlite":
        return _sqlite(address, read_only=read_only)
    options = {
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "jubako",
        # A database that is gone without a word is noticed within half a minute.
        "options": " ".join(f"-c {limit}={STATEMENT_SECONDS}s" for limit in POSTGRESQL_LIMITS),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": STATEMENT_SECONDS * 1000,
    }
    made = sa.create_engine(
        address, connect_args=options, pool_size=1, max_overflow=0, pool_pre_ping=True, hide_parameters=True
    )

    def give_password(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        if password_file is not None:
            parameters["password"] = password_file.read_text().strip()

    sa.event.listen(made, "do_connect", give_password)
    return made


def _sqlite(address: URL, *, read_only: bool) -> Engine:
    file = Path(address.database or "")
    if read_only:
        # SQLite reads `#`, `?` and `%` of a URI as any reader does; unquoted, another file would be made, not read.
        address = URL.create("sqlite", database=file.absolute().as_uri(), query={"mode": "ro", "uri": "true"})
    made = sa.create_engine(address, connect_args={"timeout": SQLITE_BUSY_SECONDS}, hide_parameters=True)

    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver's guess
        if not read_only:
            _write_ahead(connection)
            # A commit must outlive a power cut: audit files are removed on the strength of it.
            connection.execute("PRAGMA synchronous=FULL")

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    sa.event.listen(made, "connect", configure)
    sa.event.listen(made, "begin", begin)
    return made


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Have a write-ahead log. While another process does the same, SQLite refuses at once, without its own waiting."""
    give_up_at = time.monotonic() + SQLITE_BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(AGAIN_SECONDS)
        else:
            return


def require_place(address: URL, password_file: Path | None) -> None:
    """What can be known without the database being there; raises `StartupFault`."""
    if password_file is not None:
        try:
            password_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise StartupFault(f"books.ledger_password_file: {password_file}: cannot be read: {error}") from None
    if address.get_backend_name() == "sqlite":
        file = Path(address.database or "")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file.touch(mode=0o600)
        except OSError as error:
            raise StartupFault(f"books.ledger_sqlite_file: {file}: {error.strerror or error}") from None


def migrate(made: Engine) -> None:
    """Bring the database to this version, in one transaction; a second process that does the same waits for the first.

    Raises `NewerDatabase`.
    """
    with made.begin() as connection:  # on SQLite: BEGIN IMMEDIATE, so that only one writes
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        if require_known(connection) != _scripts().get_current_head():
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def require_known(connection: Connection) -> str | None:
    """The version of the database, None for an empty one; raises `NewerDatabase` for one we do not know."""
    version = MigrationContext.configure(connection).get_current_revision()
    known = {step.revision for step in _scripts().walk_revisions()}
    if version is not None and version not in known:
        raise NewerDatabase(
            f"the ledger's database has version {version}, and this Jubako knows {', '.join(sorted(known))}: it was "
            "opened by a newer one. Run that, or name another database in books.ledger_url or ledger_sqlite_file."
        )
    return version


def is_current(connection: Connection) -> bool:
    """Whether the tables are those of this version."""
    return require_known(connection) == _scripts().get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def upsert(connection: Connection, table: sa.Table, rows: Sequence[dict[str, Any]], added: Sequence[str]) -> None:
    """Insert `rows`; where the primary key is there already, add the columns `added` to what it has."""
    make: Callable[[sa.Table], Any] = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(table)
    sums = {name: table.c[name] + statement.excluded[name] for name in added}
    keys = [column.name for column in table.primary_key]
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums), list(rows))
