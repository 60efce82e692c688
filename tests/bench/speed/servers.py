"""The two servers, both up at once on the same model with the same engine options: vLLM's own, and Jubako with all on.

It owns their processes, Jubako's project and the tenant in it; it knows nothing of loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench import projects
from tests.bench.speed import kernel, scenarios
from tests.bench.speed.narrow import write_narrow
from tests.contract.vllm_server import running_server
from tests.project import Project

TENANT = "bench"
ALIAS = scenarios.ALIAS
SEQUENCES = 256
"""The most streams of any scenario."""
SETTINGS = {
    "JUBAKO__ENGINE__OPTIONS__MAX_NUM_SEQS": str(SEQUENCES),
    # As many run as the engine takes, as vLLM's own server has it: the two are to carry the same load.
    "JUBAKO__ADMISSION__TIME_PER_OUTPUT_TOKEN_SECONDS": "5",
}


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


@contextmanager
def pair(folder: Path, *, narrow: bool, parser: str | None = None) -> Iterator[dict[str, Peer]]:
    """Both servers, on the demo model or on a corner of it; `folder` keeps what they wrote.

    With a `parser` of tool calls, every chat reply passes it, whether tools are on offer or not.
    """
    model, dtype = projects.demo_model()
    if narrow:
        model = write_narrow(model, folder)
    options = ["--served-model-name", ALIAS, "--dtype", dtype, "--enable-auto-tool-choice"]
    options += ["--tool-call-parser", "hermes"]
    options += projects.flags(projects.PROFILE["options"] | {"max_num_seqs": SEQUENCES})
    before = set(psutil.Process().children())
    with running_server(model, options, projects.ENVIRONMENT, folder / "vllm.log") as url:
        (server,) = set(psutil.Process().children()) - before
        vllm = Peer("vllm", projects.port(url), "none", server.pid)
        with _jubako(folder, model, projects.smoke_answer(url), parser) as jubako:
            yield {"vllm": vllm, "jubako": jubako}


@contextmanager
def _jubako(folder: Path, model: Path, answer: str, parser: str | None) -> Iterator[Peer]:
    project = Project.copy_to(folder / "project", {"BENTOML_HOME": str(folder / "home"), **SETTINGS})
    options = ["--alias", ALIAS] + ([] if parser is None else ["--tool-call-parser", parser])
    projects.serve_release(project, "bench", model, answer, *options)
    keys = projects.write_tenants(project, projects.POLICY, TENANT)
    with projects.ready(project, folder) as served:
        yield Peer("jubako", projects.port(served.url), keys[TENANT], served.worker().pid)
