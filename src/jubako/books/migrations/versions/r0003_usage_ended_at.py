"""Rows by time, so that old ones can be deleted a few at a time."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the index."""
    op.create_index("usage_ended_at", "usage", ["ended_at"])
