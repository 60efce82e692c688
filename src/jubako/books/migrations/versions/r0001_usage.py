"""Usage by request, and how far each audit has been taken."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make both tables."""
    texts = ("ended_at", "request_id", "tenant", "key_id", "alias", "release", "route", "outcome", "code")
    op.create_table(
        "usage",
        sa.Column("journal", sa.Text(), primary_key=True),
        sa.Column("sequence", sa.BigInteger(), primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in texts),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in ("adapter", "stream")),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("status", "priority")),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("prompt_tokens", "cached_tokens", "generated_tokens")
        ),
        *(
            sa.Column(name, sa.Float(), nullable=False)
            for name in ("queue_seconds", "first_token_seconds", "total_seconds")
        ),
    )
    op.create_table(
        "journals",
        sa.Column("journal", sa.Text(), primary_key=True),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
    )
