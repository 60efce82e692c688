"""What benchmarks' servers are started with: the demo model, the engine's options, a project with tenants and keys.

It knows no load, and no server but Jubako started from a project.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from jubako.release import bundle, catalogue
from tests.project import DEMO, REPOSITORY, Project, Served

CONFIGURATION = REPOSITORY / "configuration"
PROFILE = yaml.safe_load((CONFIGURATION / "engines" / "cpu.yaml").read_text())
ENVIRONMENT = {name: str(value) for name, value in PROFILE["environment"].items()}
SMOKE: Mapping[str, Any] = {"prompt": "The capital of France is", "max_tokens": 8}
POLICY: dict[str, Any] = {
    "models": "all",
    "scopes": ["models", "chat", "completions"],
    "weight": 1,
    "priority": 1,
    "deadline_seconds": 600,
    "queue_seconds": 500,
    "limits": {},
    "tenant_budget": {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "tokens_per_month": 10**9},
    "key_budget": {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "concurrency": 10**4},
}
"""Budgets that are kept and never reached: their cost is to be seen."""


def demo_model() -> tuple[Path, str]:
    """The folder of the demo model and its dtype."""
    release = catalogue.load(CONFIGURATION, f"{DEMO}/1")
    model = bundle.model_root(release) / "model"
    if not model.is_dir():
        raise RuntimeError(f"no model in {model}; run `jubako release fetch`")
    return model, release.dtype


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options of vLLM's engine as its own server's command line spells them."""
    found: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        found += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return found


def smoke_answer(url: str) -> str:
    """What the model says to the smoke prompt: Jubako serves no release that has none."""
    reply = httpx.post(f"{url}/v1/completions", json={**SMOKE, "temperature": 0, "seed": 0}, timeout=60)
    text: str = reply.raise_for_status().json()["choices"][0]["text"]
    return text


def serve_release(project: Project, name: str, model: Path, answer: str, *options: str) -> None:
    """Have the project serve a release of a model folder, whose smoke prompt has that answer."""
    smoke = project.folder.with_name("smoke.yaml")
    smoke.write_text(yaml.safe_dump([{"name": "as vLLM's own server", **SMOKE, "expected": answer}]))
    told = ["--from-folder", str(model), "--licence", "Apache-2.0", "--licence-reason", "a measure"]
    run(project, "release", "create", name, "1", *told, "--smoke", str(smoke), *options)
    project.environment |= {"JUBAKO__RELEASE__NAME": name, "JUBAKO__RELEASE__VERSION": "'1'"}


def write_tenants(project: Project, policy: Mapping[str, Any], *tenants: str) -> dict[str, str]:
    """Have these tenants alone, all of one policy; a key of each."""
    those = {name: {"policy": "bench", "suspended": False} for name in tenants}
    document = {"policies": {"bench": policy}, "tenants": those}
    (project.folder / "configuration" / "tenants.yaml").write_text(json.dumps(document))
    return {name: new_key(project, name) for name in tenants}


def new_key(project: Project, tenant: str) -> str:
    """One more of a tenant."""
    return run(project, "keys", "create", tenant).strip()


def run(project: Project, *command: str) -> str:
    """What a command of `jubako` says."""
    made = project.jubako(*command)
    if made.returncode != 0:
        raise RuntimeError(f"`jubako {' '.join(command[:2])}` failed:\n{made.stderr}")
    return str(made.stdout)


@contextmanager
def ready(project: Project, folder: Path) -> Iterator[Served]:
    """`jubako serve` from the project, once it is ready; what it wrote stays as `jubako.log` in `folder`."""
    with project.serving() as served:
        try:
            yield served.wait_ready()
        finally:
            shutil.copy(served.log_file, folder / "jubako.log")


def port(url: str) -> int:
    """Of a server's address."""
    found = httpx.URL(url).port
    if found is None:
        raise RuntimeError(f"no port in {url}")
    return found
