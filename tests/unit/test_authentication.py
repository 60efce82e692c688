"""Who is let in, and how soon a change of who may come is in force."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jubako import settings
from jubako.errors import Forbidden, StartupFault, Unauthenticated
from jubako.gate import keys
from jubako.gate.authentication import Authenticator, require
from jubako.gate.keys import KeyRecord
from jubako.sections import AuthenticationSettings, JwtSettings
from jubako.vocabulary import Principal, Scope
from tests import identity_provider
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


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of this test alone."""
    return Project(tmp_path)


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


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER   {} "])
async def test_a_key_stands_for_its_tenant(project: Project, form: str) -> None:
    """As a bearer, in any case and with any spaces around; its id is its public name."""
    principal = await project.load().authenticate(form.format(project.key))
    assert (principal.tenant, principal.key_id) == ("default", project.record.id)
    assert principal.scopes == principal.policy.scopes == {Scope.MODELS, Scope.CHAT, Scope.COMPLETIONS}


@pytest.mark.parametrize(
    "form",
    ["", "Bearer", "Bearer ", "{}", "Basic {}", "Bearer {}x", "Bearer x{}", "Bearer\t{}", "Bearer \xff\x00\ud800"],
)
async def test_anything_else_is_an_invalid_key(project: Project, form: str) -> None:
    """The refusal does not repeat what was sent."""
    with pytest.raises(Unauthenticated) as raised:
        await project.load().authenticate(form.format(project.key))
    assert raised.value.code == "invalid_api_key"
    assert project.key not in raised.value.message


async def test_no_header_is_a_missing_key(project: Project) -> None:
    """It has a code of its own, and the message says how to send one."""
    with pytest.raises(Unauthenticated, match="Bearer") as raised:
        await project.load().authenticate(None)
    assert raised.value.code == "missing_api_key"


async def test_a_known_id_with_another_secret_is_refused(project: Project) -> None:
    """Like an unknown id, with the same words."""
    other = project.add()[0]
    mixed = f"jbk_{project.record.id}_{other.split('_', 2)[2]}"
    unknown = f"jbk_aaaaaaaaaaaa_{other.split('_', 2)[2]}"
    one, messages = project.load(), set()
    for key in (mixed, unknown):
        with pytest.raises(Unauthenticated) as raised:
            await ask(one, key)
        messages.add(raised.value.message)
    assert len(messages) == 1


async def test_a_key_ends_when_it_was_said_to(project: Project) -> None:
    """Not a second later, and without a reload."""
    key, record = project.add(expires=NOW + timedelta(hours=1))
    assert record.expires is not None
    time = record.expires.timestamp() - 1
    one = project.load(clock=lambda: time)
    assert await code(one, key) == "accepted"
    time += 1
    assert await code(one, key) == "invalid_api_key"


async def test_a_key_has_at_most_what_its_tenant_has(project: Project) -> None:
    """Its scopes are those of both; a scope that is missing is named."""
    key, _ = project.add(scopes=[Scope.CHAT, Scope.OPERATOR])
    principal = await ask(project.load(), key)
    assert principal.scopes == {Scope.CHAT}
    require(principal, Scope.CHAT)
    with pytest.raises(Forbidden, match="'operator'") as raised:
        require(principal, Scope.OPERATOR)
    assert raised.value.code == "scope_missing"


async def test_the_key_cannot_be_read_from_what_is_kept(project: Project) -> None:
    """Neither the authenticator nor the principal holds it."""
    one = project.load()
    assert project.key not in repr(vars(one)) + repr(await ask(one, project.key))


async def test_all_faults_of_all_files_are_told_at_once(project: Project) -> None:
    """Tenants, keys and key set."""
    project.edit("weight: 1", "weigth: 1")
    project.keys.write_text("{")
    with pytest.raises(StartupFault) as raised:
        project.load(identity_provider.settings("jwks.json"))
    for part in ("tenants.yaml:8: policies.standard.weigth", "keys.json:1: not valid JSON", "jwks.json: the key set"):
        assert part in str(raised.value)


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


async def test_tokens_and_keys_are_accepted_side_by_side(project: Project) -> None:
    """With the tenant's policy; the scopes are those of both."""
    (project.root / "jwks.json").write_bytes(identity_provider.key_set(PAIR.jwk()))
    one = project.load(identity_provider.settings("jwks.json", scope_claim="scope"))
    principal = await ask(one, PAIR.token(scope="chat operator openid"))
    assert principal.tenant == "default"
    assert principal.key_id.startswith("jwt:")
    assert principal.scopes == {Scope.CHAT}
    assert await code(one, project.key) == "accepted"
    assert await code(one, PAIR.token(exp=1)) == "expired_token"
    assert await code(one, PAIR.token(tenant="unknown")) == "invalid_api_key"
    assert await code(project.load(), PAIR.token()) == "invalid_api_key"


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
