"""vLLM's and the process's metrics beside ours: their names stay, and many waits are observed at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from jubako.telemetry.metrics import exposition, observe_all


@pytest.fixture
def registry() -> CollectorRegistry:
    """One of this test alone."""
    return CollectorRegistry()


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "text/plain;version=0.0.4",
        "application/openmetrics-text",
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.6,text/plain;version=1.0.0;q=0.5",
    ],
)
def test_vllm_s_names_stay_in_every_format(registry: CollectorRegistry, accept: str) -> None:
    """The library's OpenMetrics would write `vllm_` for `vllm:` to scrapers that ask as Prometheus does."""
    Counter("vllm:prompt_tokens", "theirs", ["model_name"], registry=registry).labels("m").inc(7)
    text = exposition(registry, accept)[0].decode()
    assert '\nvllm:prompt_tokens_total{model_name="m"} 7.0\n' in text
    assert "vllm_" not in text


def test_the_default_registry_has_process_and_gc_metrics_beside_ours_and_vllm_s() -> None:
    """In a process that left Prometheus' multiprocess mode as the service does; what is vLLM's stays as it was."""
    script = """
import os
os.environ["PROMETHEUS_MULTIPROC_DIR"] = "/nowhere"
os.environ.pop("PROMETHEUS_MULTIPROC_DIR")
from prometheus_client import REGISTRY, Counter, generate_latest
from jubako.telemetry.metrics import Metrics
theirs = Counter("vllm:prompt_tokens", "theirs", ["model_name"])
theirs.labels("m").inc(7)
Metrics(REGISTRY, ["m"], release="m/1", digest="d")
for collector in list(REGISTRY._collector_to_names):  # as vLLM clears what it left behind
    if hasattr(collector, "_name") and collector._name.startswith("vllm:gone"):
        REGISTRY.unregister(collector)
print(generate_latest().decode())
"""
    text = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for line in ("process_resident_memory_bytes ", "process_cpu_seconds_total ", "process_open_fds ", "jubako_ready "):
        assert f"\n{line}" in text
    assert "\npython_gc_collections_total{" in text
    assert '\nvllm:prompt_tokens_total{model_name="m"} 7.0' in text
    assert '\njubako_release_info{digest="d",release="m/1"} 1.0' in text


def test_many_observed_at_once_look_as_if_observed_one_by_one() -> None:
    """Each in its bucket: bounds are inclusive, and beyond the last there is infinity."""
    amounts = [0.5, 1.0, 1.5, 2.0, 4.0, 5.0, 1000.0, 0.0, -1.0, 1.0]
    shown = []
    for at_once in (True, False):
        registry = CollectorRegistry()
        histogram = Histogram("waits", "Waits.", ["engine"], registry=registry, buckets=(1, 2, 4)).labels("0")
        if at_once:
            observe_all(histogram, amounts)
        else:
            for amount in amounts:
                histogram.observe(amount)
        shown.append([line for line in exposition(registry, "")[0].decode().splitlines() if "created" not in line])
    assert shown[0] == shown[1]
