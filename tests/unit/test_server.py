"""What the documents promise of the server's end follows from its own bounds."""

from __future__ import annotations

import re

from jubako import settings
from jubako.server import grace_seconds
from tests.project import REPOSITORY


def test_the_grace_period_of_the_documents_is_the_server_s_own_bound() -> None:
    """An orchestrator that follows them kills no server that would still have ended by itself."""
    life = settings.load(REPOSITORY).server.life
    rest_seconds = grace_seconds(life) - life.drain_seconds - 2 * life.close_seconds
    for name in ("README.md", "CHANGELOG.md", "docs/adr/0004-life-of-the-server.md"):
        told = re.findall(r"drain_seconds \+ 2 . (?:life\.)?close_seconds \+ (\d+)", (REPOSITORY / name).read_text())
        assert told == [f"{rest_seconds:g}"], name
    assert f"seconds or more: {grace_seconds(life):g} with the defaults" in (REPOSITORY / "README.md").read_text()
