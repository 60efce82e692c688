"""The file of budgets: the server's alone, kept over a restart, and each fault at the start with advice."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jubako.errors import QuotaExhausted, StartupFault
from jubako.gate.budgets import sqlite
from jubako.vocabulary import Budget
from tests.budget_refusals import refused
from tests.budget_stores import NOON, Clock, StoreUnderTest, crash, end, principal


class TestFile:
    def store(self, folder: Path) -> StoreUnderTest:
        return StoreUnderTest("sqlite", folder, None)

    async def fault(self, folder: Path) -> str:
        with pytest.raises(StartupFault) as caught:
            await self.store(folder).open()
        return str(caught.value)

    async def test_it_is_the_servers_alone_and_survives_a_restart(self, tmp_path: Path) -> None:
        store = self.store(tmp_path / "new" / "folder")
        asker = principal(Budget(tokens_per_month=100))
        await end(await (await store.open(Clock())).reserve(asker, 70), 60)
        for file in (tmp_path / "new" / "folder").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await store.close()
        again = await store.open(Clock(NOON + 5))
        assert "60 are used" in (await refused(again, asker, 50)).message
        await store.close()

    async def test_a_file_of_the_first_schema_is_taken_over(self, tmp_path: Path) -> None:
        """It did not say what of the tokens is held; its server must have ended, or its lease have lapsed."""
        store = self.store(tmp_path)
        asker = principal(Budget(tokens_per_month=100, requests_per_minute=5))
        first = await store.open(Clock(), lease_seconds=30)
        await end(await first.reserve(asker, 40), 30)
        await first.reserve(asker, 50)
        await crash(first)
        with closing(sqlite3.connect(tmp_path / "budgets.sqlite")) as file:
            for name, state in file.execute("SELECT name, state FROM accounts").fetchall():
                file.execute("UPDATE accounts SET state = ? WHERE name = ?", (state[:8] + state[16:], name))
            file.execute("PRAGMA user_version = 1")
            file.commit()
        with pytest.raises(StartupFault, match="a server of an earlier version uses it"):
            await store.open(Clock(NOON + 5))
        again = await store.open(Clock(NOON + 31))
        assert isinstance(await refused(again, asker, 71), QuotaExhausted)
        await again.reserve(asker, 60)
        refusal = await refused(again, asker, 50)
        assert refusal.code == "rate_limit_exceeded"
        assert "90 are used or held" in refusal.message
        await store.close()

    async def test_a_log_that_cannot_be_moved_is_told_of_once_and_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(sqlite, "CHECKPOINT_SECONDS", 0.01)
        monkeypatch.setattr(logging.getLogger("jubako"), "propagate", True)
        store = self.store(tmp_path)
        budgets = await store.open(Clock())
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect
        failures = 0

        def failing(*arguments: Any, **named: Any) -> sqlite3.Connection:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise sqlite3.OperationalError("unable to open database file")
            return connect(*arguments, **named)

        monkeypatch.setattr(sqlite3, "connect", failing)
        monkeypatch.setattr(sqlite, "CHECKPOINT_TRANSACTIONS", 1)  # not before: it would have connected already
        kept: Any = budgets._store
        asker = principal(Budget(tokens_per_month=10**6))
        async with asyncio.timeout(90):
            await end(await budgets.reserve(asker, 1), 1)
            while failures < 3 or kept._transactions:
                await asyncio.sleep(0.01)
        told = [one.getMessage() for one in caplog.records if "cannot be moved" in one.getMessage()]
        assert len(told) == 1
        assert "unable to open database file" in told[0]
        await store.close()

    async def test_a_file_that_is_no_database_is_named_with_advice(self, tmp_path: Path) -> None:
        file = tmp_path / "budgets.sqlite"
        file.write_bytes(b"my diary, page one\n" * 500)
        message = await self.fault(tmp_path)
        assert str(file) in message
        assert "Move it away" in message
        assert file.read_bytes().startswith(b"my diary")

    async def test_a_database_of_something_else_is_left_alone(self, tmp_path: Path) -> None:
        file = tmp_path / "budgets.sqlite"
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE diary (page TEXT)")
        connection.close()
        before = file.read_bytes()
        assert "something else" in await self.fault(tmp_path)
        assert file.read_bytes() == before

    async def test_another_version_is_not_guessed_at(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        await store.open()
        await store.close()
        connection = sqlite3.connect(tmp_path / "budgets.sqlite")
        connection.execute("PRAGMA user_version = 9")
        connection.close()
        assert "version 9" in await self.fault(tmp_path)

    async def test_a_damaged_file_is_seen_at_the_start(self, tmp_path: Path) -> None:
        store = self.store(tmp_path)
        budgets = await store.open()
        for number in range(200):
            await budgets.reserve(principal(Budget(concurrency=1), tenant=f"tenant{number}"), 1)
        await crash(budgets)
        store.opened.clear()
        file = tmp_path / "budgets.sqlite"
        content = bytearray(file.read_bytes())
        content[4096 : len(content)] = b"\xa5" * (len(content) - 4096)
        file.write_bytes(content)
        message = await self.fault(tmp_path)
        assert str(file) in message
        assert "Move it away" in message

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    async def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        folder = tmp_path / "read-only"
        os.mkdir(folder, 0o500)  # noqa: PTH102 - in one step with its mode
        assert "cannot be written" in await self.fault(folder)

    @pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
    async def test_a_folder_of_any_name_holds_the_file(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        store = self.store(tmp_path / name)
        await store.open()
        await store.close()
        assert (tmp_path / name / "budgets.sqlite").stat().st_size > 0
        assert os.listdir(tmp_path) == [name]  # noqa: PTH208 - within a coroutine

    async def test_a_path_that_is_a_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "budgets.sqlite").mkdir()
        assert "cannot be written: Is a directory" in await self.fault(tmp_path)

    async def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert "cannot be written" in await self.fault(tmp_path / "file")
