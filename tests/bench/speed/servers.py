"""The two servers, both up at once on the same model with the same engine options: vLLM's own, and Jubako with all on.

It owns their processes, Jubako's project and the tenant in it; it knows nothing of loads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from jubako.release import bundle, manifest
from tests.bench.speed import kernel, scenarios
from tests.bench.speed.narrow import write_narrow
from tests.contract.vllm_server import running_server
from tests.project import DEMO, REPOSITORY, Project

TENANT = "bench"
ALIAS = scenarios.ALIAS
PROFILE = yaml.safe_load((REPOSITORY / "configuration" / "engines" / "cpu.yaml").read_text())
SEQUENCES = 256
"""The most streams of any scenario."""
SMOKE: Mapping[str, Any] = {"prompt": "The capital of France is", "max_tokens": 8}
POLICY: Mapping[str, Any] = {
    "models": "all",
    "scopes": ["models", "chat", "completions"],
    "weight": 1,
    "priority": 1,
    "deadline_seconds": 600,
    "queue_seconds": 500,
    "limits": {},
    "tenant_budget": {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "tokens_per_month": 10**9},
    "key_budget": {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "concurrency": 10_000},
}
"""Budgets that are kept and never reached: their cost is to be seen."""
PACE = {"JUBAKO__ADMISSION__TIME_PER_OUTPUT_TOKEN_SECONDS": "5"}
"""As many sequences as the engine takes, as vLLM's own server has it: the two are to carry the same load."""


@dataclass(frozen=True)
class Peer:
    """A server that answers, and the process that does it."""

    name: str
    port: int
    key: str
    pid: int

    @property
    def cpu_seconds(self) -> float:
        """Of the serving process, so far."""
        return kernel.cpu_seconds(self.pid)

    @property
    def peak_bytes(self) -> int:
        """Of the serving process, so far."""
        return kernel.peak_bytes(self.pid)


def demo_model() -> tuple[Path, str]:
    """The folder of the demo model and its dtype."""
    release = manifest.load(REPOSITORY / "configuration" / "releases" / DEMO / "1" / "manifest.yaml")
    model = bundle.model_root(release) / "model"
    if not model.is_dir():
        raise RuntimeError(f"no model in {model}; run `jubako release fetch`")
    return model, release.dtype


@contextmanager
def pair(folder: Path, *, narrow: bool, parser: str | None = None) -> Iterator[dict[str, Peer]]:
    """Both servers, on the demo model or on a corner of it; `folder` keeps what they wrote.

    With a `parser` of tool calls, every chat reply passes it, whether tools are on offer or not.
    """
    model, dtype = demo_model()
    if narrow:
        model = write_narrow(model, folder)
    options = PROFILE["options"] | {"max_num_seqs": SEQUENCES}
    environment = {name: str(value) for name, value in PROFILE["environment"].items()}
    flags = [
        "--served-model-name",
        ALIAS,
        "--dtype",
        dtype,
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    ]
    for name, value in options.items():
        flag = name.replace("_", "-")
        flags += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    before = set(psutil.Process().children())
    with running_server(model, flags, environment, folder / "vllm.log") as url:
        (server,) = set(psutil.Process().children()) - before
        vllm = Peer("vllm", _port(url), "none", server.pid)
        with _jubako(folder, model, smoke_answer(url), parser) as jubako:
            yield {"vllm": vllm, "jubako": jubako}


def smoke_answer(url: str) -> str:
    """What the model says to the smoke prompt: Jubako serves no release that has none."""
    reply = httpx.post(f"{url}/v1/completions", json={**SMOKE, "temperature": 0, "seed": 0}, timeout=60)
    text: str = reply.raise_for_status().json()["choices"][0]["text"]
    return text


@contextmanager
def _jubako(folder: Path, model: Path, answer: str, parser: str | None) -> Iterator[Peer]:
    project = Project.copy_to(folder / "project", {"BENTOML_HOME": str(folder / "home"), **PACE})
    project.environment["JUBAKO__ENGINE__OPTIONS__MAX_NUM_SEQS"] = str(SEQUENCES)
    smoke = folder / "smoke.yaml"
    smoke.write_text(yaml.safe_dump([{"name": "as vLLM's own server", **SMOKE, "expected": answer}]))
    options = [
        "--from-folder",
        str(model),
        "--alias",
        ALIAS,
        "--licence",
        "Apache-2.0",
        "--licence-reason",
        "a measure",
    ]
    options += ["--smoke", str(smoke)] + ([] if parser is None else ["--tool-call-parser", parser])
    _run(project, "release", "create", "bench", "1", *options)
    project.environment |= {"JUBAKO__RELEASE__NAME": "bench", "JUBAKO__RELEASE__VERSION": "'1'"}
    document = {"policies": {TENANT: POLICY}, "tenants": {TENANT: {"policy": TENANT, "suspended": False}}}
    (project.folder / "configuration" / "tenants.yaml").write_text(json.dumps(document))
    key = _run(project, "keys", "create", TENANT).strip()
    with project.serving() as served:
        try:
            served.wait_ready()
            yield Peer("jubako", _port(served.url), key, served.worker().pid)
        finally:
            shutil.copy(served.log_file, folder / "jubako.log")


def _run(project: Project, *command: str) -> str:
    made = project.jubako(*command)
    if made.returncode != 0:
        raise RuntimeError(f"`jubako {' '.join(command[:2])}` failed:\n{made.stderr}")
    return str(made.stdout)


def _port(url: str) -> int:
    port = httpx.URL(url).port
    if port is None:
        raise RuntimeError(f"no port in {url}")
    return port
