"""Two tenants share nothing: not a cached prefix, and no field or header of a request changes that."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest

from tests.contract.corpus import ADAPTER, BASE
from tests.project import Served
from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BLOCK_TOKENS = 128
"""Of the cache on CPUs: shorter prompts are never found in it."""
TRICKS: list[dict[str, Any]] = [
    {"cache_salt": "x"},
    {"cache_salt": ""},
    {"kv_transfer_params": {"do_remote_prefill": True}},
    {"request_id": "x"},
    {"vllm_xargs": {"cache_salt": "x"}},
    {"priority": -1},
    {"session_id": "x"},
    {"user": "red"},
    {"safety_identifier": "red"},
    {"prompt_cache_key": "x"},
    {"metadata": {"tenant": "red"}},
]
HEADERS = {
    "x-tenant": "red",
    "x-user-id": "red",
    "x-session-id": "red",
    "x-vllm-priority": "-5",
    "x-data-parallel-rank": "0",
    "x-request-id": "shared-by-both",
    "openai-organization": "red",
    "openai-project": "red",
}


def long_text() -> str:
    """A prompt of several cache blocks that nobody has sent before."""
    return f"{uuid.uuid4()} " + "The quick brown fox jumps over the lazy dog. " * 60


def cached(
    server: Served,
    key: str,
    route: str,
    text: str,
    *,
    model: str = BASE,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> int:
    """How many tokens of the prompt the engine found cached; -1 when the request was refused."""
    body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0}
    if route == "chat/completions":
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["prompt"] = text
    reply = httpx.post(
        f"{server.url}/v1/{route}",
        headers={"authorization": f"Bearer {key}", **(headers or {})},
        json=body | fields,
        timeout=120,
    )
    if reply.status_code != httpx.codes.OK:
        assert reply.status_code == httpx.codes.BAD_REQUEST, reply.text
        return -1
    details = reply.json()["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


@pytest.mark.parametrize("model", [BASE, ADAPTER])
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_a_prefix_is_cached_for_its_own_tenant_alone(jubako_server: Served, keys: Keys, route: str, model: str) -> None:
    """The same prompt again finds its tokens; another tenant's key, whatever it claims, finds none."""
    red, blue, text = keys.of("red"), keys.of("blue"), long_text()
    assert cached(jubako_server, red, route, text, model=model) == 0
    assert cached(jubako_server, red, route, text, model=model) >= BLOCK_TOKENS
    assert cached(jubako_server, blue, route, text, model=model, headers=HEADERS) == 0


@pytest.mark.parametrize("trick", TRICKS, ids=json.dumps)
def test_no_field_reaches_another_tenants_cache(jubako_server: Served, keys: Keys, trick: dict[str, Any]) -> None:
    """Both send the field: what is not refused finds nothing."""
    red, blue, text = keys.of("red"), keys.of("blue"), long_text()
    cached(jubako_server, red, "completions", text)
    cached(jubako_server, red, "completions", text, **trick)
    found = cached(jubako_server, blue, "completions", text, **trick)
    assert found in {-1, 0}


def test_two_keys_of_one_tenant_share_its_cache(jubako_server: Served, keys: Keys) -> None:
    """Caches are the tenant's, not the key's."""
    text = long_text()
    assert cached(jubako_server, keys.of("red"), "completions", text) == 0
    assert cached(jubako_server, keys.another("red"), "completions", text) >= BLOCK_TOKENS
