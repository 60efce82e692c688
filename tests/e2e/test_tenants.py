"""What an operator decides of a tenant holds at once, on every route, for streams under way included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from tests.callers import Caller
from tests.contract.corpus import ADAPTER, BASE
from tests.project import Project, Served, until
from tests.tenant_requests import ask, error_of, error_of_or_none, names
from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
TEN_TIMES_SEEN_SECONDS = 20.0
"""For what takes two seconds at most."""


def test_a_name_that_is_not_approved_does_not_exist(jubako_server: Served, keys: Keys) -> None:
    """Not in the list, not by itself, not to be asked; existence is not told."""
    assert names(jubako_server, keys.of("base-only")) == [BASE]
    assert names(jubako_server, keys.of("adapter-only")) == [ADAPTER]
    stranger = ask(jubako_server, keys.of("base-only"), model="no-such-model")
    refused = ask(jubako_server, keys.of("base-only"), model=ADAPTER)
    assert error_of(refused) == (404, "model_not_found")
    assert refused.json() == stranger.json()
    assert error_of(ask(jubako_server, keys.of("adapter-only"), model=BASE)) == (404, "model_not_found")
    # Who names no model asks for the first one.
    assert error_of(ask(jubako_server, keys.of("adapter-only"), model=None)) == (404, "model_not_found")
    assert ask(jubako_server, keys.of("adapter-only"), model=ADAPTER).status_code == httpx.codes.OK


def test_a_scope_opens_its_routes_alone(jubako_server: Served, keys: Keys) -> None:
    """Of the policy, and of the key within it."""
    assert error_of(ask(jubako_server, keys.of("chat-only"))) == (403, "scope_missing")
    listing = keys.another("default", "--scope", "models")
    assert BASE in names(jubako_server, listing)
    assert error_of(ask(jubako_server, listing)) == (403, "scope_missing")


def test_metrics_and_documents_are_the_operators(jubako_server: Served, keys: Keys) -> None:
    """A tenant's key does not read them; the operator's reads nothing else."""
    for path, key, status in (
        ("/metrics", None, 401),
        ("/metrics", keys.of("red"), 403),
        ("/metrics", jubako_server.operator_key, 200),
        ("/schema.json", jubako_server.operator_key, 404),
        ("/docs.json", jubako_server.operator_key, 404),
        ("/", jubako_server.operator_key, 404),
    ):
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        assert httpx.get(f"{jubako_server.url}{path}", headers=headers).status_code == status, path
    assert error_of(ask(jubako_server, jubako_server.operator_key)) == (403, "scope_missing")
    for path in ("/livez", "/readyz", "/healthz"):
        assert httpx.get(f"{jubako_server.url}{path}").status_code == httpx.codes.OK


def test_a_suspended_tenant_is_told_so(jubako_server: Served, keys: Keys) -> None:
    """With a status of its own."""
    assert error_of(ask(jubako_server, keys.of("suspended"))) == (403, "tenant_suspended")


def test_a_revoked_key_fails_soon_and_drops_nothing(
    jubako_server: Served, keys: Keys, adapted_project: Project
) -> None:
    """A stream that it began goes on; others notice nothing."""
    key = keys.another("revocable")
    identity = key.split("_")[1]
    neighbour = Caller(jubako_server, 150)
    neighbour.start()
    assert ask(jubako_server, key).status_code == httpx.codes.OK
    revoked = adapted_project.jubako("keys", "revoke", identity)
    assert revoked.returncode == 0, revoked.stderr
    until(
        lambda: error_of_or_none(ask(jubako_server, key)) == (401, "invalid_api_key"),
        "the key is refused",
        TEN_TIMES_SEEN_SECONDS,
    )
    neighbour.join(120)
    assert neighbour.completed


def test_a_broken_edit_keeps_the_last_good_state_and_says_so(
    jubako_server: Served, keys: Keys, adapted_project: Project
) -> None:
    """Tenants go on being served while the file is wrong, and a good one is taken again."""
    path = adapted_project.folder / "configuration" / "tenants.yaml"
    good = path.read_text()
    try:
        path.write_text(good.replace('"policy": "red"', '"policy": "rde"'))
        until(lambda: "tenants.yaml" in jubako_server.log and "rde" in jubako_server.log, "the log names the fault")
        assert ask(jubako_server, keys.of("red")).status_code == httpx.codes.OK
        document = yaml.safe_load(good)
        document["tenants"]["red"]["suspended"] = True
        path.write_text(json.dumps(document, indent=1))
        until(lambda: error_of_or_none(ask(jubako_server, keys.of("red"))) == (403, "tenant_suspended"), "suspended")
    finally:
        path.write_text(good)
    until(lambda: ask(jubako_server, keys.of("red")).status_code == httpx.codes.OK, "back")


def test_a_policys_limits_are_lower_than_the_servers(jubako_server: Served, keys: Keys) -> None:
    """Output tokens, prompt tokens after rendering, messages; and the default for those who ask for none."""
    key = keys.of("small")
    assert ask(jubako_server, key, max_tokens=8).status_code == httpx.codes.OK
    assert ask(jubako_server, key, max_tokens=9).json()["error"]["param"] == "max_tokens"
    assert error_of(ask(jubako_server, key, prompt="word " * 60)) == (400, "context_length_exceeded")
    assert error_of(ask(jubako_server, key, prompt=[list(range(60))])) == (400, "context_length_exceeded")
    with openai.OpenAI(base_url=f"{jubako_server.url}/v1", api_key=key) as client:
        talk: Any = [{"role": "user", "content": "Count to one hundred."}]
        reply = client.chat.completions.create(model=BASE, messages=talk)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 4
        assert reply.choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match="messages"):
            client.chat.completions.create(model=BASE, messages=talk * 4)


def test_no_file_of_the_gate_is_readable_by_others(adapted_project: Project, jubako_server: Served) -> None:
    """Digests and counts are nobody else's business."""
    kept = adapted_project.folder / ".jubako"
    for name in ("keys.json", "dev.key", "operator.key", "budgets.sqlite"):
        assert (Path(kept / name).stat().st_mode & 0o077) == 0, name
