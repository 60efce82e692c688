"""The ledger's tables. `migrations` makes them; a test holds the two together. Knows nothing of who reads them."""

from __future__ import annotations

import sqlalchemy as sa

from jubako.vocabulary import Outcome

COUNTS = ("requests", *(outcome.value for outcome in Outcome))
"""Of requests: all of them, then by outcome."""
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")

metadata = sa.MetaData()

usage = sa.Table(
    "usage",
    metadata,
    sa.Column("journal", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("ended_at", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("alias", sa.Text, nullable=False),
    sa.Column("adapter", sa.Boolean, nullable=False),
    sa.Column("release", sa.Text, nullable=False),
    sa.Column("route", sa.Text, nullable=False),
    sa.Column("stream", sa.Boolean, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in TOKENS),
    sa.Column("queue_seconds", sa.Float, nullable=False),
    sa.Column("first_token_seconds", sa.Float, nullable=False),
    sa.Column("total_seconds", sa.Float, nullable=False),
    sa.Index("usage_ended_at", "ended_at"),  # the oldest are found without reading all, and so is a span of time
)
"""One row a request, for as long as `books.ledger_row_days` says.

`ended_at` is the audit's text, RFC 3339 in UTC: it sorts, and is the same in every database.
"""

usage_daily = sa.Table(
    "usage_daily",
    metadata,
    sa.Column("day", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("alias", sa.Text, primary_key=True),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*COUNTS, *TOKENS)),
)
"""Sums of `usage`, by the UTC day in which the request ended (`2026-01-31`)."""

journals = sa.Table(
    "journals",
    metadata,
    sa.Column("journal", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
"""Up to which line each server's audit has been taken. Moves in the same transaction as the rows."""
