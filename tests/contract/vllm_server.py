"""vLLM's own OpenAI server, run as it comes: the peer that Jubako is compared with.

It owns the process from start to SIGTERM; it knows nothing of requests or replies.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.contract.corpus import ADAPTER, BASE, CONTEXT_TOKENS, SECOND_NAME

START_SECONDS = 300.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.25

OPTIONS = (
    *("--enforce-eager", "--dtype", "bfloat16", "--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", "16"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-lora", "--max-lora-rank", "8"),
    "--enable-prompt-tokens-details",
)
CACHE = {"VLLM_CPU_KVCACHE_SPACE": "1"}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


@contextmanager
def vllm_server(model_folder: Path, adapter_folder: Path, log: Path) -> Iterator[str]:
    """Run it as the parity contract wants it: two names, an adapter, tools."""
    names = ("--served-model-name", BASE, SECOND_NAME)
    options = [*names, *OPTIONS, "--lora-modules", f"{ADAPTER}={adapter_folder}"]
    with running_server(model_folder, options, CACHE, log) as url:
        yield url


@contextmanager
def running_server(
    model_folder: Path, options: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[str]:
    """Run vLLM's own server on a free port and yield its base URL; it is stopped and waited for at the end."""
    port = _free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)),
        *("--model", str(model_folder), *options),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **ENVIRONMENT, **environment}, stdout=output, stderr=output
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_health(url, process, log)
            yield url
        finally:
            _stop(process)


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            raise RuntimeError(f"vLLM's own server ended with {process.returncode}:\n{_tail(log)}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            continue
    raise TimeoutError(f"vLLM's own server was not ready in {START_SECONDS:.0f} s:\n{_tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
