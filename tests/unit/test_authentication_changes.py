"""How soon a change of who may come is in force, and that a broken one keeps the last good state."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from jubako.gate import keys
from tests import identity_provider
from tests.authenticators import NOW, PAIR, Project, ask, code, until, watched
from tests.identity_provider import KeyPair


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of this test alone."""
    return Project(tmp_path)


async def test_a_revoked_key_fails_soon_and_others_go_on(project: Project) -> None:
    """No restart, no moment in which a good key is refused."""
    other, _ = project.add()
    one = project.load()
    async with watched(one):
        with keys.change(project.keys) as records:
            records[project.record.id] = keys.revoked(records[project.record.id], NOW)
        async with asyncio.timeout(90):
            while await code(one, project.key) != "invalid_api_key":
                assert await code(one, other) == "accepted"
                await asyncio.sleep(0)
        new, _ = project.add()
        await until(one, new, "accepted")


async def test_a_revoked_key_fails_though_the_tenants_file_is_broken(project: Project) -> None:
    """The files stand for themselves."""
    one = project.load()
    async with watched(one):
        project.edit("priority: 1", "priority: 99")
        with keys.change(project.keys) as records:
            records[project.record.id] = keys.revoked(records[project.record.id], NOW)
        await until(one, project.key, "invalid_api_key")


async def test_a_tenant_is_suspended_restored_and_removed(project: Project) -> None:
    """Each time within moments, its keys with it."""
    one = project.load()
    line = "default: {policy: standard, suspended: false}"
    async with watched(one):
        project.edit(line, line.replace("false", "true"))
        await until(one, project.key, "tenant_suspended")
        project.edit(line.replace("false", "true"), line)
        await until(one, project.key, "accepted")
        project.edit(line, line.replace("default", "another"))
        await until(one, project.key, "invalid_api_key")


async def test_a_broken_edit_keeps_the_last_good_state_and_says_so_once(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    """One error with file, line and fault for each broken content, one line of information when it is good again."""
    caplog.set_level("INFO")
    one = project.load()
    async with watched(one):
        for broken in ("priority: 99", "priority: 98"):
            before = len(caplog.records)
            project.edit("priority: 1" if broken.endswith("99") else "priority: 99", broken)
            async with asyncio.timeout(90):
                while len(caplog.records) == before:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # many more looks
            (record,) = caplog.records[before:]
            assert record.levelname == "ERROR"
            assert f"{project.tenants}:9: policies.standard.priority: " in record.getMessage()
            assert await code(one, project.key) == "accepted"
        caplog.clear()
        project.edit("priority: 98", "priority: 3")
        async with asyncio.timeout(90):
            while (await ask(one, project.key)).policy.priority != 3:
                await asyncio.sleep(0.01)
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 1, "keys": [{}]}', None])
async def test_a_broken_keys_file_keeps_the_keys(
    project: Project, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Emptied, cut off, malformed or gone."""
    one = project.load()
    async with watched(one):
        if content is None:
            project.keys.unlink()
        else:
            project.keys.write_bytes(content)
        async with asyncio.timeout(90):
            while not caplog.records:
                await asyncio.sleep(0.01)
        assert await code(one, project.key) == "accepted"
    assert str(project.keys) in caplog.text


async def test_a_swap_of_folders_as_kubernetes_does_it_is_seen(project: Project) -> None:
    """The file is a link to a file below a link that is replaced."""
    old, new = project.root / "..2026_1", project.root / "..2026_2"
    project.keys.parent.rename(old)
    shutil.copytree(old, new)
    (project.root / "..data").symlink_to(old.name)
    project.keys.parent.mkdir()
    project.keys.symlink_to(project.root / "..data" / "keys.json")
    one = project.load()
    key, record = keys.new("default", now=NOW)
    (new / "keys.json").write_bytes(keys.dump({record.id: record}))
    async with watched(one):
        (project.root / "..data_tmp").symlink_to(new.name)
        (project.root / "..data_tmp").rename(project.root / "..data")
        await until(one, key, "accepted")
        assert await code(one, project.key) == "invalid_api_key"


async def test_a_token_follows_its_tenant_and_its_key_set(project: Project) -> None:
    """Suspended with the tenant, refused with the key."""
    path = project.root / "jwks.json"
    path.write_bytes(identity_provider.key_set(PAIR.jwk()))
    one, token = project.load(identity_provider.settings("jwks.json")), PAIR.token()
    async with watched(one):
        assert await code(one, token) == "accepted"
        project.edit("default: {policy: standard, suspended: false}", "default: {policy: standard, suspended: true}")
        await until(one, token, "tenant_suspended")
        path.write_bytes(identity_provider.key_set(KeyPair("two").jwk()))
        await until(one, token, "invalid_api_key")


async def test_a_provider_that_is_down_keeps_no_key_from_working(project: Project) -> None:
    """Nothing is fetched to start."""
    with identity_provider.serving(PAIR.jwk()) as provider:
        one = project.load(identity_provider.settings(provider.url))
        assert provider.asked == 0
        provider.status = 500
        async with watched(one):
            assert await code(one, project.key) == "accepted"


async def test_a_look_that_fails_at_one_file_does_not_lose_another_s_change(project: Project) -> None:
    """Each file tells of a change once; a fault at the keys is no reason to serve a tenant that was suspended."""
    one = project.load()
    fail = one._files.keys.changed

    def failing() -> None:
        raise RuntimeError("out of file descriptors")

    one._files.keys.changed = failing  # type: ignore[method-assign]
    async with watched(one):
        project.edit("{policy: standard, suspended: false}", "{policy: standard, suspended: true}")
        await until(one, project.key, "tenant_suspended")
        one._files.keys.changed = fail  # type: ignore[method-assign]
        with keys.change(project.keys) as records:
            records[project.record.id] = keys.revoked(project.record, NOW)
        await until(one, project.key, "invalid_api_key")
