"""The tool: one run of GuideLLM against one server, its own report, and the server's processor time meanwhile.

GuideLLM because it is the vLLM project's own benchmark, so it asks as vLLM wants to be asked; it is maintained, reads a
tokenizer from a folder, and needs no network. NVIDIA's aiperf would do as well: it brings four dozen direct
dependencies, clients of Kubernetes among them; this brings half as many. It runs in an environment of its own.

It is Python, handles each event by itself, and shares two cores with the server that it asks: tokens a second and times
say how both fare beside such a caller. What the server itself spent is the kernel's to say.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from tests.bench.speed.measure import Figures
from tests.bench.speed.scenarios import ALIAS, FIRST, RATE, TOKEN_CPU
from tests.bench.speed.servers import Peer
from tests.project import REPOSITORY

PROGRAM = REPOSITORY / "build" / "outside-venv" / "bin" / "guidellm"
RUN_SECONDS = 240.0
SAMPLE_SECONDS = 0.05
PACE = "itl_p50_ms"
"""The tool's inter-token latency."""
BUSY = "streams_at_once"
"""Requests under way, the mean: a tool that gets too little of the machine keeps fewer than it was told, and a token of
few streams costs more."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Its default is ten processes; here they would have a fifth of a core each.
    "GUIDELLM__MAX_WORKER_PROCESSES": "1",
}


@dataclass(frozen=True)
class Load:
    """What the tool is told to send: chat, streamed, every reply of the same length."""

    name: str
    what: str
    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    usage_in_each_event: bool
    """GuideLLM asks for this unless it is told otherwise; the official clients do not."""


def measure(peer: Peer, load: Load, tokenizer: Path, folder: Path) -> Figures:
    """Run the tool to its end; `folder` gets what it was told and what it reports."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    told = folder / "told.json"
    with os.fdopen(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # it has a key in it
        json.dump(_told(peer, load, tokenizer, report), file)
    with _Watch(peer) as watch:
        done = subprocess.run(
            [str(PROGRAM), "run", "--config", str(told), "--disable-console"],
            env=os.environ | ENVIRONMENT,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    if done.returncode != 0 or not report.exists():
        raise RuntimeError(f"guidellm on {peer.name}: {(done.stderr + done.stdout).decode(errors='replace')[-2000:]}")
    return figures(json.loads(report.read_text()), load, watch)


def version() -> str:
    """As the tool says it."""
    said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, timeout=RUN_SECONDS, check=True)
    return said.stdout.split()[-1]


def _told(peer: Peer, load: Load, tokenizer: Path, report: Path) -> dict[str, Any]:
    backend: dict[str, Any] = {
        "kind": "openai_http",
        "target": f"http://127.0.0.1:{peer.port}",
        "model": ALIAS,
        "api_key": peer.key,
        "request_format": "/v1/chat/completions",
        "http2": False,
        "validate_backend": False,
    }
    extra: dict[str, Any] = {"temperature": 0}
    if not load.usage_in_each_event:
        extra["stream_options"] = {"continuous_usage_stats": False}
    return {
        "spec": {
            "backend": backend | {"extras": {"body": extra}},
            "profile": {"kind": "concurrent", "streams": [load.streams]},
            "tokenizer": {"kind": "huggingface_auto", "model": str(tokenizer)},
            "data": [
                {
                    "kind": "synthetic_text",
                    "prompt_tokens": load.prompt_tokens,
                    "output_tokens": load.output_tokens,
                }
            ],
            "constraints": [
                {"kind": "max_requests", "count": load.requests},
                {"kind": "max_duration", "seconds": RUN_SECONDS / 2},
            ],
            "metrics": {"kind": "generative", "sample_size": 0},
            "outputs": [{"kind": "json", "path": str(report)}],
        }
    }


class _Watch:
    """The server's processor time, seen often: the tool takes long to start, and that time is not to be counted."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._times: list[float] = []
        self._spent: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._times.append(time.time())
            self._spent.append(self._peer.cpu_seconds)

    def between(self, begin: float, end: float) -> float:
        """Seconds of processor time between two times of the day."""
        first, last = (min(bisect_left(self._times, at), len(self._times) - 1) for at in (begin, end))
        return self._spent[last] - self._spent[max(0, first - 1)]


class Watched(Protocol):
    """Whoever knows what the server spent."""

    def between(self, begin: float, end: float) -> float:
        """Seconds of processor time between two times of the day."""


def figures(report: Mapping[str, Any], load: Load, watch: Watched) -> Figures:
    """What the tool found, and what the server spent meanwhile; only of a run in which every request was answered."""
    (benchmark,) = report["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    if totals["successful"] != load.requests or totals["errored"] or totals["incomplete"]:
        raise RuntimeError(f"guidellm: not every request was answered: {totals}")
    tokens = metrics["output_token_count"]["successful"]["total_sum"]
    if tokens != load.requests * load.output_tokens:
        raise RuntimeError(f"guidellm counts {tokens:.0f} tokens, not {load.requests * load.output_tokens}")

    def middle(name: str) -> float:
        return float(metrics[name]["successful"]["percentiles"]["p50"])

    return {
        TOKEN_CPU: watch.between(benchmark["start_time"], benchmark["end_time"]) / tokens * 1e6,
        BUSY: float(metrics["request_concurrency"]["successful"]["mean"]),
        RATE: float(metrics["output_tokens_per_second"]["successful"]["mean"]),
        FIRST: middle("time_to_first_token_ms"),
        PACE: middle("inter_token_latency_ms"),
    }
