"""The two servers, one after the other: vLLM's own and Jubako, with the same model and engine options.

It owns their processes, Jubako's project folder and the tenants in it; it knows nothing of loads.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.bench import projects
from tests.bench.overload.generator import Caller
from tests.contract.vllm_server import running_server
from tests.project import DEMO, Project

IDLE_SECONDS = 60.0
POLL_SECONDS = 0.2
BUSY = re.compile(rb"^(?:vllm:num_requests_(?:running|waiting)|jubako_queue_depth)(?:\{.*\})? (\S+)$", re.MULTILINE)

SINGLE, LOUD, QUIET = "single", "loud", "quiet"
TENANTS = (SINGLE, LOUD, QUIET)
POLICY = projects.POLICY | {"deadline_seconds": 60, "queue_seconds": 1.5, "tenant_budget": {}, "key_budget": {}}
"""Of all tenants. Who would wait longer in the queue than leaves time for a first token within the SLO is refused."""
OVERRIDES = {"JUBAKO__SURFACES__METRICS": "open"}
"""So that idleness can be seen without one more key."""
PACE = "JUBAKO__ADMISSION__TIME_PER_OUTPUT_TOKEN_SECONDS"
OVERLOAD_PACE = 0.15
"""Seconds that are held behind the queue in the sweep: less than the objective's, so that noise stays within it."""


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
    return {
        "engine": projects.PROFILE,
        "policy": POLICY,
        "overrides": dict(OVERRIDES),
        "time_per_output_token_seconds": OVERLOAD_PACE,
    }


@contextmanager
def vllm(folder: Path) -> Iterator[Running]:
    """vLLM's own server with the options of Jubako's engine profile."""
    model, dtype = projects.demo_model()
    options = ["--served-model-name", DEMO, "--dtype", dtype, *projects.flags(projects.PROFILE["options"])]
    with running_server(model, options, projects.ENVIRONMENT, folder / "vllm.log") as url:
        port = projects.port(url)
        yield Running(port, {SINGLE: Caller(SINGLE, None, port, DEMO)})


@contextmanager
def jubako(folder: Path, pace_seconds: float = OVERLOAD_PACE) -> Iterator[Running]:
    """`jubako serve` from a project of its own, with three tenants of the same policy.

    Project and keys are gone afterwards; what the server wrote stays as `jubako.log` in `folder`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        project = Project.copy_to(Path(temporary) / "project", {**OVERRIDES, PACE: str(pace_seconds)})
        keys = projects.write_tenants(project, POLICY, *TENANTS)
        with projects.ready(project, folder) as served:
            port = projects.port(served.url)
            yield Running(port, {tenant: Caller(tenant, key, port, DEMO) for tenant, key in keys.items()})
