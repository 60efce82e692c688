"""A project's folder with tenants and keys, the authenticator of it, and what that says of a key."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jubako import settings
from jubako.errors import Forbidden, Unauthenticated
from jubako.gate import keys
from jubako.gate.authentication import Authenticator
from jubako.gate.keys import KeyRecord
from jubako.sections import AuthenticationSettings, JwtSettings
from jubako.vocabulary import Principal
from tests.identity_provider import KeyPair
from tests.project import REPOSITORY

SERVER = settings.load(REPOSITORY, {}).server
NOW = datetime.now(UTC)
PAIR = KeyPair("one")


class Project:
    """A project's folder with tenants and keys, and what is loaded from it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tenants = root / "configuration" / "tenants.yaml"
        self.keys = root / ".jubako" / "keys.json"
        self.tenants.parent.mkdir()
        shutil.copy(REPOSITORY / "configuration" / "tenants.yaml", self.tenants)
        self.key, self.record = self.add()

    def add(self, tenant: str = "default", **options: Any) -> tuple[str, KeyRecord]:
        """A new key."""
        key, record = keys.new(tenant, now=NOW, **options)
        with keys.change(self.keys) as records:
            records[record.id] = record
        return key, record

    def load(self, jwt: JwtSettings | None = None, clock: Callable[[], float] | None = None) -> Authenticator:
        """The authenticator; it looks for changes often."""
        section = AuthenticationSettings.model_validate(
            SERVER.authentication.model_dump() | {"reload_seconds": 0.02, "jwt": jwt}
        )
        options: dict[str, Any] = {} if clock is None else {"clock": clock}
        return Authenticator.load(section, self.root, SERVER.limits.limits, 600, None, **options)

    def edit(self, old: str, new: str) -> None:
        """Change the tenants' file in place, as an editor does."""
        text = self.tenants.read_text()
        assert old in text
        self.tenants.write_text(text.replace(old, new))


async def ask(one: Authenticator, key: str) -> Principal:
    """Authenticate with a key or token."""
    return await one.authenticate(f"Bearer {key}")


async def code(one: Authenticator, key: str) -> str:
    """The code of the refusal, or `accepted`."""
    try:
        await ask(one, key)
    except (Unauthenticated, Forbidden) as refusal:
        return refusal.code
    return "accepted"


@asynccontextmanager
async def watched(one: Authenticator) -> AsyncIterator[None]:
    """The watch runs during the block."""
    task = asyncio.create_task(one.watch())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(one: Authenticator, key: str, wanted: str) -> None:
    """Wait until the key gets that code; two seconds are what is promised at twenty times this interval."""
    async with asyncio.timeout(90):
        while await code(one, key) != wanted:
            await asyncio.sleep(0.01)
