"""The server under soak: a project of its own on the narrow model, with an adapter, tenants, and everything on.

Narrow, because it answers many times as many requests in a minute as the demo model does: what is left behind by each
shows sooner. It owns project, keys and processes; it knows nothing of loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.bench import projects
from tests.bench.speed.narrow import write_narrow
from tests.contract.corpus import ADAPTER, BASE, CONTEXT_TOKENS
from tests.contract.vllm_server import running_server
from tests.project import REPOSITORY, Project, Served
from tests.reckoning import Reckoning
from tests.tiny_lora import write_adapter

PROBE, READER, OPERATOR = "probe", "reader", "operations"
TENANTS: Mapping[str, Mapping[str, Any]] = {
    PROBE: {"priority": 0, "queue_seconds": 60},
    READER: {"queue_seconds": 60},
    "red": {"queue_seconds": 10},
    "blue": {"queue_seconds": 10},
    "impatient": {"queue_seconds": 0.05},
    "hasty": {"deadline_seconds": 2},
    "one-at-a-time": {"tenant_budget": {"concurrency": 1}},
    "thrifty": {"tenant_budget": {"tokens_per_minute": 20000}},
    "base-only": {"models": [BASE]},
}
"""Tenant -> what its policy changes of `standard`. The first two are the measured ones; the others make the load."""
LOAD = tuple(name for name in TENANTS if name not in {PROBE, READER})
SEQUENCES = 32
BLOCKS = 512
"""Of the cache: so few that each was in use before the first rest. Their memory is touched with their first use, and a
whole gibibyte would be in use only after half an hour: growth that is no leak would hide one."""
ROLES = {
    "serving": "_bentoml_impl.worker.service",
    "engine": "EngineCore",
    "worker": "VLLM::Worker",
    "vetting": "vetting_child.py",
}
"""Name of a process in the report -> what its command line has."""


@dataclass(frozen=True)
class Soaked:
    """The running server, its books, a key of each tenant, and where the witness in it writes."""

    served: Served
    books: Reckoning
    keys: Mapping[str, str]
    witness: Path
    settings: Mapping[str, str]

    def processes(self) -> dict[str, psutil.Process]:
        """By their names in the report; one that does not run is left out."""
        found = {}
        for process in self.served.processes():
            try:
                line = " ".join([process.name(), *process.cmdline()])
            except psutil.Error:
                continue
            for role, mark in ROLES.items():
                if mark in line and role not in found:
                    found[role] = process
        return found


@contextmanager
def soaked(folder: Path, stalled_reader_seconds: float) -> Iterator[Soaked]:
    """Start it and wait until it is ready; `folder` keeps what it wrote."""
    model, dtype = projects.demo_model()
    narrow = write_narrow(model, folder)
    adapter = write_adapter(narrow, folder / "adapter")
    settings = {
        "JUBAKO__ENGINE__OPTIONS__MAX_NUM_SEQS": str(SEQUENCES),
        "JUBAKO__ENGINE__OPTIONS__MAX_MODEL_LEN": str(CONTEXT_TOKENS),
        "JUBAKO__ENGINE__OPTIONS__MAX_LORA_RANK": "8",
        "JUBAKO__ENGINE__OPTIONS__NUM_GPU_BLOCKS_OVERRIDE": str(BLOCKS),
        "JUBAKO__STREAM__STALLED_READER_SECONDS": f"{stalled_reader_seconds:g}",
    }
    project = Project.copy_to(folder / "project", {"BENTOML_HOME": str(folder / "home"), **settings})
    options = ["--alias", BASE, "--adapter", f"{ADAPTER}={adapter}"]
    projects.serve_release(project, "soak", narrow, _answer(narrow, dtype, folder), *options)
    _write_tenants(project)
    keys = {tenant: projects.new_key(project, tenant) for tenant in TENANTS}
    witness = folder / "witness.json"
    _install_witness(project, witness)
    operator = projects.new_key(project, OPERATOR)
    with projects.ready(project, folder) as served:
        served.operator_key_file.write_text(operator)
        yield Soaked(served, Reckoning(project), keys, witness, settings)


def _answer(model: Path, dtype: str, folder: Path) -> str:
    """Of vLLM's own server, which the release is held against."""
    options = ["--dtype", dtype, "--enforce-eager", "--max-model-len", "512", "--served-model-name", BASE]
    with running_server(model, options, projects.ENVIRONMENT, folder / "vllm.log") as url:
        return projects.smoke_answer(url)


def _write_tenants(project: Project) -> None:
    path = project.folder / "configuration" / "tenants.yaml"
    document = yaml.safe_load(path.read_text())
    for name, changes in TENANTS.items():
        document["policies"][name] = document["policies"]["standard"] | dict(changes)
        document["tenants"][name] = {"policy": name, "suspended": False}
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML, and has none of the aliases that are refused


def _install_witness(project: Project, file: Path) -> None:
    """One line more in the project's own copy of the service."""
    service = project.folder / "service.py"
    lines = ["import sys", f"sys.path.append({str(REPOSITORY)!r})"]
    lines += ["from tests.bench.soak import witness", "witness.install(Path(" + repr(str(file)) + "))"]
    service.write_text(service.read_text() + "\n" + "\n".join(lines) + "\n")
