"""The address of Redis: each fault at the start is named, and no password is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from jubako.errors import StartupFault
from tests.budget_stores import RedisServer, StoreUnderTest


class TestRedisAddress:
    async def fault(self, tmp_path: Path, url: str | None, password_file: Path | None = None) -> str:
        from jubako.gate.budgets.opening import budgets

        settings = StoreUnderTest("sqlite", tmp_path, None).settings()
        changes = {"store": "redis", "redis_url": url, "redis_password_file": password_file}
        settings = settings.model_copy(update=changes)
        with pytest.raises(StartupFault) as caught:
            await budgets(settings, tmp_path).open()
        return str(caught.value)

    async def test_nobody_there(self, tmp_path: Path) -> None:
        message = await self.fault(tmp_path, "redis://127.0.0.1:1/0")
        assert "redis://127.0.0.1:1/0" in message
        assert "Start Redis there" in message

    async def test_no_address(self, tmp_path: Path) -> None:
        assert "no address" in await self.fault(tmp_path, None)

    @pytest.mark.parametrize("url", ["redis://:hunter2@localhost", "redis://u:hunter2@localhost/1"])
    async def test_a_password_in_the_address_is_refused_and_not_repeated(self, tmp_path: Path, url: str) -> None:
        message = await self.fault(tmp_path, url)
        assert "redis_password_file" in message
        assert "hunter2" not in message

    @pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "redis://"])
    async def test_another_scheme(self, tmp_path: Path, url: str) -> None:
        assert "expected redis://" in await self.fault(tmp_path, url)

    async def test_the_password_file(self, tmp_path: Path, redis_of_tests: RedisServer | None) -> None:
        if redis_of_tests is None:
            pytest.skip("redis-server is not installed (Debian: apt install redis-server)")
        assert "No such file" in await self.fault(tmp_path, redis_of_tests.url, Path("secret"))
        (tmp_path / "secret").write_text("open sesame\n")
        (tmp_path / "wrong").write_text("open barley\n")
        with redis_of_tests.client() as client:
            client.config_set("requirepass", "open sesame")
            try:
                message = await self.fault(tmp_path, redis_of_tests.url, Path("wrong"))
                assert "barley" not in message
                from jubako.gate.budgets.opening import budgets

                settings = StoreUnderTest("redis", tmp_path, redis_of_tests).settings()
                right = budgets(settings.model_copy(update={"redis_password_file": Path("secret")}), tmp_path)
                await right.open()
                await right.close()
            finally:
                client.config_set("requirepass", "")
