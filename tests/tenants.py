"""Tenants of the server that most tests share: one for each thing that a policy can say.

It knows the form of tenants.yaml and the command line; it knows nothing of requests.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import httpx
import yaml

from tests.contract.corpus import ADAPTER, BASE, LONGEST_SECONDS
from tests.project import Project, Served, until

POLICIES: dict[str, dict[str, Any]] = {
    "red": {},
    "blue": {},
    "base-only": {"models": [BASE]},
    "adapter-only": {"models": [ADAPTER]},
    "chat-only": {"scopes": ["chat"]},
    "hasty": {"deadline_seconds": 2},
    "impatient": {"queue_seconds": 0.05},
    "three-a-minute": {"tenant_budget": {"requests_per_minute": 3}},
    "thrifty": {"tenant_budget": {"tokens_per_minute": 20000}},
    "one-at-a-time": {"tenant_budget": {"concurrency": 1}},
    "one-a-key": {"key_budget": {"concurrency": 1}},
    "spent": {"tenant_budget": {"tokens_per_day": 40}},
    "small": {"limits": {"output_tokens": 8, "default_output_tokens": 4, "prompt_tokens": 50, "messages": 3}},
    "revocable": {},
}
"""Tenant -> what its policy changes of `standard`; the policy is called like the tenant."""


def be_patient(project: Project) -> dict[str, Any]:
    """Let the standard policy wait for its turn and have long streams: tests mean what they ask to be answered."""
    path = project.folder / "configuration" / "tenants.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    document["policies"]["standard"] |= {"queue_seconds": 60, "deadline_seconds": LONGEST_SECONDS}
    # Through JSON, which is YAML: PyYAML would write what two policies share as an alias, which is refused.
    path.write_text(json.dumps(document, indent=1))
    return document


def write(project: Project) -> None:
    """Add the tenants to the project's tenants.yaml."""
    document = be_patient(project)
    path = project.folder / "configuration" / "tenants.yaml"
    for name, changes in POLICIES.items():
        document["policies"][name] = document["policies"]["standard"] | changes
        document["tenants"][name] = {"policy": name, "suspended": False}
    document["tenants"]["suspended"] = {"policy": "standard", "suspended": True}
    path.write_text(json.dumps(document, indent=1))


def make_key(project: Project, server: Served, tenant: str, *options: str) -> str:
    """A new key of the tenant, from the command line, once the running server knows it."""
    made = project.jubako("keys", "create", tenant, *options)
    assert made.returncode == 0, made.stderr
    key: str = made.stdout.strip()

    def known() -> bool:
        reply = httpx.get(f"{server.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=120)
        return reply.status_code != httpx.codes.UNAUTHORIZED

    until(known, "the key is known")
    return key


class Keys:
    """One key a tenant, made when it is first asked for."""

    def __init__(self, project: Project, server: Served) -> None:
        self._of = functools.lru_cache(maxsize=None)(lambda tenant: make_key(project, server, tenant))
        self._project, self._server = project, server

    def of(self, tenant: str) -> str:
        """The tenant's key."""
        return self._of(tenant)

    def another(self, tenant: str, *options: str) -> str:
        """One more key of the tenant."""
        return make_key(self._project, self._server, tenant, *options)
