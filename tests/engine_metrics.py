"""What the engine says of itself in the server's metrics. It knows their text format and no requests."""

from __future__ import annotations

import re

import httpx

from tests.project import END_SECONDS, Served, until

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
CACHE = "vllm:kv_cache_usage_perc"
GENERATED = "vllm:generation_tokens_total"


def gauges(server: Served) -> dict[str, float]:
    """Every sample of vLLM's by its name, those that differ in labels added up."""
    found: dict[str, float] = {}
    headers = {"authorization": f"Bearer {server.operator_key}"}
    reply = httpx.get(f"{server.url}/metrics", headers=headers, timeout=120)
    assert reply.status_code == httpx.codes.OK, reply.text
    for line in reply.text.splitlines():
        if match := re.fullmatch(r"(vllm:\w+)(?:\{.*\})? (\S+)", line):
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def await_busy(server: Served, requests: int = 1) -> None:
    """Wait until the engine runs at least so many requests."""
    until(lambda: gauges(server)[RUNNING] >= requests, f"the engine runs {requests} requests")


def await_rest(server: Served, seconds: float = END_SECONDS) -> None:
    """Wait until the engine runs nothing, holds nothing back and has no cache in use."""
    until(
        lambda: all(gauges(server)[name] == 0 for name in (RUNNING, WAITING, CACHE)),
        "the engine is at rest",
        seconds,
    )
