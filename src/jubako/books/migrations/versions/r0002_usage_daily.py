"""Sums by day, tenant, key and alias, filled from what was booked before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

OUTCOMES = ("completed", "length", "cancelled", "deadline", "refused", "failed")
TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")


def upgrade() -> None:
    """Make the table and fill it."""
    op.create_table(
        "usage_daily",
        *(sa.Column(name, sa.Text(), primary_key=True) for name in ("day", "tenant", "key_id", "alias")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("requests", *OUTCOMES, *TOKENS)),
    )
    usage = sa.table(
        "usage",
        *(sa.column(name, sa.Text()) for name in ("ended_at", "tenant", "key_id", "alias", "outcome")),
        *(sa.column(name, sa.BigInteger()) for name in TOKENS),
    )
    daily = sa.table("usage_daily", *(sa.column(name) for name in _columns()))
    day = sa.func.substr(usage.c.ended_at, 1, 10)
    keys = (day, usage.c.tenant, usage.c.key_id, usage.c.alias)
    sums = (
        sa.func.count(),
        *(sa.func.sum(sa.case((usage.c.outcome == outcome, 1), else_=0)) for outcome in OUTCOMES),
        *(sa.func.sum(usage.c[name]) for name in TOKENS),
    )
    op.execute(daily.insert().from_select(_columns(), sa.select(*keys, *sums).group_by(*keys)))


def _columns() -> list[str]:
    return ["day", "tenant", "key_id", "alias", "requests", *OUTCOMES, *TOKENS]
