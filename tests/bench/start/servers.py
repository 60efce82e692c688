"""One start of either server, alone on the machine: on the demo model, with the same engine options.

It owns their processes from the first to the last, and says when each was ready, when it had answered, and what
processor time all of them had used by then. It knows nothing of rounds or reports.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from jubako.start_times import begun, now
from tests.bench.projects import ENVIRONMENT as PROFILE_ENVIRONMENT
from tests.bench.projects import PROFILE, demo_model, flags
from tests.contract.vllm_server import ENVIRONMENT, STOP_SECONDS
from tests.project import Project, free_port

START_SECONDS = 300.0
POLL_SECONDS = 0.05
ALIAS = "smollm2"
"""What the demo release answers to."""
BODY: Mapping[str, Any] = {
    "model": ALIAS,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 8,
    "temperature": 0,
}

Phases = Callable[[int, float], dict[str, float]]
"""What is known of the start of a first process, whose server was ready at a time."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start; seconds from the first process."""

    ready_seconds: float
    answer_seconds: float
    """To the first answer of a caller."""
    cpu_seconds: float
    """Of all processes together, up to ready."""
    resident_bytes: int
    """Of all processes together, pages that some share divided between them, once ready."""
    phases: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def start_vllm(folder: Path) -> Start:
    """Start vLLM's own server and stop it again; `folder` keeps its log."""
    model, dtype = demo_model()
    port = free_port()
    options = ["--model", str(model), "--served-model-name", ALIAS, "--dtype", dtype, *flags(PROFILE["options"])]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    environment = ENVIRONMENT | PROFILE_ENVIRONMENT
    with (folder / "vllm.log").open("ab") as log, _process([*command, *options], environment, log) as process:
        ready = _await(f"http://127.0.0.1:{port}/health", process)
        return _measure(process.pid, ready, _family(process.pid), (port, "none"), _phases_of_vllm)


def start_jubako(folder: Path) -> Start:
    """Start Jubako as `jubako serve` does, in a project of its own, and stop it again; `folder` keeps its log."""
    project = Project.copy_to(folder / f"project-{time.monotonic_ns()}")
    port = free_port()
    project.jubako("config", "check").check_returncode()
    with project.serving(port=port) as served:
        ready = _await(f"{served.url}/readyz", served.process)

        def phases(_: int, __: float) -> dict[str, float]:
            headers = {"authorization": f"Bearer {served.operator_key}"}
            text = httpx.get(f"{served.url}/metrics", headers=headers, timeout=60).raise_for_status().text
            families = text_string_to_metric_families(text)
            samples = next(family.samples for family in families if family.name == "jubako_start_seconds")
            return {sample.labels["phase"]: sample.value for sample in samples}

        try:
            return _measure(served.process.pid, ready, served.processes(), (port, served.key), phases)
        finally:
            served.terminate()
            with suppress(subprocess.TimeoutExpired):
                served.wait_end(STOP_SECONDS)
            shutil.copy(served.log_file, folder / "jubako.log")


@contextmanager
def _process(command: list[str], environment: Mapping[str, str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        yield process
    finally:
        family = _family(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            for one in family:
                with suppress(psutil.Error):
                    one.kill()
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes]) -> float:
    """Ask until the server says that it is ready, and return when that was."""
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5) as client:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}")
            with suppress(httpx.TransportError):
                if client.get(url).status_code == httpx.codes.OK:
                    return now()
            time.sleep(POLL_SECONDS)
    raise RuntimeError(f"no start in {START_SECONDS:.0f} s")


def _measure(
    pid: int, ready: float, family: Iterable[psutil.Process], caller: tuple[int, str], phases: Phases
) -> Start:
    first = begun(pid)
    family = list(family)
    cpu = sum(_cpu_seconds(one) for one in family)
    resident = sum(_proportional_bytes(one) for one in family)
    reply = httpx.post(
        f"http://127.0.0.1:{caller[0]}/v1/chat/completions",
        headers={"authorization": f"Bearer {caller[1]}"},
        json=dict(BODY),
        timeout=120,
    )
    reply.raise_for_status()
    answered = now()
    return Start(ready - first, answered - first, cpu, resident, phases(pid, ready))


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _cpu_seconds(process: psutil.Process) -> float:
    """Of the process and of those of its children that have ended."""
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _proportional_bytes(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def _phases_of_vllm(pid: int, ready: float) -> dict[str, float]:
    """What can be told from outside: when its engine's process began, and the one below that computes."""
    first, last, found = begun(pid), begun(pid), {}
    for phase in ("engine_configuration", "engine_process"):
        below = [one for one in psutil.Process(pid).children() if "resource_tracker" not in " ".join(one.cmdline())]
        if not below:
            break
        pid = below[0].pid
        found[phase] = begun(pid) - last
        last = begun(pid)
    return found | {"engine_loading": ready - first - sum(found.values())}
