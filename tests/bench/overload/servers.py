"""The two servers, one after the other: vLLM's own and Jubako, with the same model and engine options.

It owns their processes, Jubako's project folder and the tenants in it; it knows nothing of loads.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from jubako.release import bundle, manifest
from tests.bench.overload.generator import Caller
from tests.contract.vllm_server import running_server
from tests.project import DEMO, REPOSITORY, Project

PROFILE = REPOSITORY / "configuration" / "engines" / "cpu.yaml"
IDLE_SECONDS = 60.0
POLL_SECONDS = 0.2
BUSY = re.compile(rb"^(?:vllm:num_requests_(?:running|waiting)|jubako_queue_depth)(?:\{.*\})? (\S+)$", re.MULTILINE)

SINGLE, LOUD, QUIET = "single", "loud", "quiet"
TENANTS = (SINGLE, LOUD, QUIET)
POLICY: Mapping[str, Any] = {
    "models": "all",
    "scopes": ["models", "chat", "completions"],
    "weight": 1,
    "priority": 1,
    "deadline_seconds": 60,
    "queue_seconds": 1.5,
    "limits": {},
    "tenant_budget": {},
    "key_budget": {},
}
"""Of all tenants. Who would wait longer in the queue than leaves time for a first token within the SLO is refused."""
OVERRIDES = {"JUBAKO__SURFACES__METRICS": "open"}
"""So that idleness can be seen without one more key."""
PACE = "JUBAKO__ADMISSION__TIME_PER_OUTPUT_TOKEN_SECONDS"
OVERLOAD_PACE, FAIRNESS_PACE = 0.1, 0.04
"""What is held behind the queue. A first token beside a full engine waits for a step or two, each as long as this: so
fairness to the first token is bought with a part of the throughput, and the two are measured at paces of their own."""


@dataclass(frozen=True)
class Running:
    """A server that answers: who may call it."""

    port: int
    callers: Mapping[str, Caller]

    async def idle(self) -> None:
        """Wait until it runs nothing and holds nothing back; the next stage must not pay for the last."""
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            deadline = asyncio.get_running_loop().time() + IDLE_SECONDS
            while asyncio.get_running_loop().time() < deadline:
                found = BUSY.findall((await client.get(f"http://127.0.0.1:{self.port}/metrics")).content)
                if not found:
                    raise RuntimeError("the server's /metrics has no count of requests: idleness cannot be seen")
                if not any(float(value) for value in found):
                    return
                await asyncio.sleep(POLL_SECONDS)
        raise TimeoutError(f"the server is not idle {IDLE_SECONDS:.0f} s after its last request was closed")


def settings() -> dict[str, Any]:
    """What both servers are run with, for the report."""
    paces = {"overload": OVERLOAD_PACE, "fairness": FAIRNESS_PACE}
    return {
        "engine": yaml.safe_load(PROFILE.read_text()),
        "policy": dict(POLICY),
        "overrides": dict(OVERRIDES),
        "time_per_output_token_seconds": paces,
    }


@contextmanager
def vllm(folder: Path) -> Iterator[Running]:
    """vLLM's own server with the options of Jubako's engine profile."""
    release = manifest.load(REPOSITORY / "configuration" / "releases" / DEMO / "1" / "manifest.yaml")
    model = bundle.model_root(release) / "model"
    if not model.is_dir():
        raise RuntimeError(f"no model in {model}; run `jubako release fetch`")
    profile = yaml.safe_load(PROFILE.read_text())
    options = ["--served-model-name", DEMO, "--dtype", release.dtype, *_flags(profile["options"])]
    environment = {name: str(value) for name, value in profile["environment"].items()}
    with running_server(model, options, environment, folder / "vllm.log") as url:
        port = httpx.URL(url).port
        assert port is not None
        yield Running(port, {SINGLE: Caller(SINGLE, None, port, DEMO)})


def _flags(options: Mapping[str, Any]) -> list[str]:
    """vLLM's option names as its command line spells them."""
    flags: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


@contextmanager
def jubako(folder: Path, pace_seconds: float = OVERLOAD_PACE) -> Iterator[Running]:
    """`jubako serve` from a project of its own, with three tenants of the same policy.

    Project and keys are gone afterwards; what the server wrote stays as `jubako.log` in `folder`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        project = Project.copy_to(Path(temporary) / "project", {**OVERRIDES, PACE: str(pace_seconds)})
        tenants = {name: {"policy": "bench", "suspended": False} for name in TENANTS}
        document = {"policies": {"bench": dict(POLICY)}, "tenants": tenants}
        (project.folder / "configuration" / "tenants.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        keys = {tenant: _key(project, tenant) for tenant in TENANTS}
        with project.serving() as served:
            try:
                served.wait_ready()
                port = httpx.URL(served.url).port
                assert port is not None
                yield Running(port, {tenant: Caller(tenant, key, port, DEMO) for tenant, key in keys.items()})
            finally:
                shutil.copy(served.log_file, folder / "jubako.log")


def _key(project: Project, tenant: str) -> str:
    made = project.jubako("keys", "create", tenant)
    if made.returncode != 0:
        raise RuntimeError(f"`jubako keys create {tenant}` failed:\n{made.stderr}")
    key = made.stdout.strip()
    if not key or len(key.split()) != 1:
        raise RuntimeError(f"`jubako keys create {tenant}` did not print one key and nothing else on stdout")
    return key
