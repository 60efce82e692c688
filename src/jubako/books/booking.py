"""How the audit's lines become rows and sums, and how rows are deleted again.

Knows nothing of transactions, which are the ledger's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from jubako.books import database
from jubako.books.schema import COUNTS, TOKENS, usage, usage_daily

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

DAY_CHARACTERS = len("2026-01-31")
_COPIED = [column.name for column in usage.columns if column.name != "ended_at"]
_TEXTS = [name for name in _COPIED if isinstance(usage.c[name].type, sa.Text)]


def row(fields: dict[str, Any]) -> dict[str, Any]:
    """The row of `usage` for one line."""
    made = {name: fields[name] for name in _COPIED}
    made["ended_at"] = fields["time"]
    for name in _TEXTS:
        made[name] = _storable(made[name])
    return made


def _storable(text: str) -> str:
    """What every database takes as text; ids out of foreign tokens may hold anything.

    PostgreSQL has no NUL, and UTF-8 has no halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def book(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Insert the rows, and add them to their days."""
    connection.execute(usage.insert(), rows)
    sums: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for one in rows:
        key = (one["ended_at"][:DAY_CHARACTERS], one["tenant"], one["key_id"], one["alias"])
        day = sums.get(key)
        if day is None:
            day = sums[key] = dict(zip(("day", "tenant", "key_id", "alias"), key, strict=True))
            day.update(dict.fromkeys((*COUNTS, *TOKENS), 0))
        day["requests"] += 1
        day[one["outcome"]] += 1
        for name in TOKENS:
            day[name] += one[name]
    # In one order everywhere: two servers that add to the same days must not wait for each other.
    database.upsert(connection, usage_daily, [sums[key] for key in sorted(sums)], (*COUNTS, *TOKENS))


def forget(connection: Connection, first_day: str, at_most: int) -> int:
    """Delete rows of days before `first_day`, about `at_most` of them; how many. The sums of their days stay."""
    old = sa.select(usage.c.journal, usage.c.sequence).where(usage.c.ended_at < first_day).limit(at_most)
    # Servers that share a database do this side by side: none waits for rows that another one is deleting.
    chosen = sa.tuple_(usage.c.journal, usage.c.sequence).in_(old.with_for_update(skip_locked=True))
    return int(connection.execute(usage.delete().where(chosen)).rowcount)
