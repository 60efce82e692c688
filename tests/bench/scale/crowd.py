"""A project with any number of tenants, each with a key and with budgets that are kept and never reached.

It owns the project's folder and the keys' texts; it knows nothing of requests.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from jubako.gate import keys
from tests.bench import projects
from tests.project import Project

POLICY = projects.POLICY | {
    "tenant_budget": projects.POLICY["tenant_budget"] | {"tokens_per_day": 10**9, "concurrency": 10**4}
}
POLICIES = 10
"""Tenants share policies, as they do in life."""


def write(folder: Path, tenants: int) -> Project:
    """The project; `texts.json` in its folder has the keys' texts, in an order that says nothing."""
    project = Project.copy_to(folder)
    write_tenants(project, tenants)
    now = datetime.now(UTC)
    records, texts = {}, []
    for number in range(tenants):
        text, record = keys.new(_name(number), now=now)
        records[record.id] = record
        texts.append(text)
    random.Random(tenants).shuffle(texts)
    (folder / ".jubako").mkdir()
    (folder / ".jubako" / "keys.json").write_bytes(keys.dump(records))
    (folder / "texts.json").write_text(json.dumps(texts))
    return project


def write_tenants(project: Project, tenants: int) -> None:
    """The tenants file, at once, as an operator's editor would."""
    lines = ["policies:"]
    lines += [f"  policy-{number}: {json.dumps(POLICY)}" for number in range(POLICIES)]
    lines += ["tenants:"]
    lines += [
        f"  {_name(number)}: {{policy: policy-{number % POLICIES}, suspended: false}}" for number in range(tenants)
    ]
    path = project.folder / "configuration" / "tenants.yaml"
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(path)


def another_key(project: Project) -> Callable[[], None]:
    """What puts a keys file into its place that has one more key, of the first tenant; it is written before that."""
    path = project.folder / ".jubako" / "keys.json"
    records = keys.load(path)
    _, record = keys.new(_name(0), now=datetime.now(UTC))
    new = path.with_suffix(".new")
    new.write_bytes(keys.dump(records | {record.id: record}))
    return lambda: os.replace(new, path)  # noqa: PTH105 - which returns nothing


def _name(number: int) -> str:
    return f"tenant-{number:05d}"
