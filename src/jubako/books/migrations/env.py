"""What Alembic runs for a migration: the steps, on the connection and in the transaction of `database.migrate`."""

from __future__ import annotations

from alembic import context

from jubako.books.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
