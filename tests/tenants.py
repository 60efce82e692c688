"""Tenants of the server that most tests share: one for each thing that a policy can say.

It knows the form of tenants.yaml and the command line; it knows nothing of requests.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import yaml

from tests.contract.corpus import ADAPTER, BASE
from tests.project import Project

POLICIES: dict[str, dict[str, Any]] = {
    "red": {},
    "blue": {},
    "base-only": {"models": [BASE]},
    "adapter-only": {"models": [ADAPTER]},
    "chat-only": {"scopes": ["chat"]},
    "hasty": {"deadline_seconds": 2},
    "impatient": {"queue_seconds": 0.05},
    "three-a-minute": {"tenant_budget": {"requests_per_minute": 3}},
    "thrifty": {"tenant_budget": {"tokens_per_minute": 400}},
    "one-at-a-time": {"tenant_budget": {"concurrency": 1}},
    "one-a-key": {"key_budget": {"concurrency": 1}},
    "spent": {"tenant_budget": {"tokens_per_day": 40}},
    "small": {"limits": {"output_tokens": 8, "default_output_tokens": 4, "prompt_tokens": 50, "messages": 3}},
    "revocable": {},
}
"""Tenant -> what its policy changes of `standard`; the policy is called like the tenant."""


def write(project: Project) -> None:
    """Add the tenants to the project's tenants.yaml."""
    path = project.folder / "configuration" / "tenants.yaml"
    document = yaml.safe_load(path.read_text())
    for name, changes in POLICIES.items():
        document["policies"][name] = document["policies"]["standard"] | changes
        document["tenants"][name] = {"policy": name, "suspended": False}
    document["tenants"]["suspended"] = {"policy": "standard", "suspended": True}
    # Through JSON, which is YAML: PyYAML would write what two policies share as an alias, which is refused.
    path.write_text(json.dumps(document, indent=1))


def make_key(project: Project, tenant: str, *options: str) -> str:
    """A new key of the tenant, from the command line."""
    made = project.jubako("keys", "create", tenant, *options)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


class Keys:
    """One key a tenant, made when it is first asked for."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.of = functools.lru_cache(maxsize=None)(lambda tenant: make_key(project, tenant))
