"""Who is let in, and as whom."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from jubako.errors import Forbidden, StartupFault, Unauthenticated
from jubako.gate.authentication import require
from jubako.vocabulary import Scope
from tests import identity_provider
from tests.authenticators import NOW, PAIR, Project, ask, code


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of this test alone."""
    return Project(tmp_path)


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
