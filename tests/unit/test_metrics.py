"""Metrics: each request counted once, labels from closed sets, every series from the start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from jubako import errors
from jubako.telemetry import reference
from jubako.telemetry.metrics import CODES, FAMILIES, Metrics, exposition, observe_all
from jubako.vocabulary import Outcome, Route, Usage
from tests.ended_requests import account, refused
from tests.project import REPOSITORY

CONTRACT = {
    "jubako_requests_total": {"route", "alias", "outcome"},
    "jubako_request_duration_seconds": set(),
    "jubako_queue_wait_seconds": {"priority"},
    "jubako_time_to_first_token_seconds": set(),
    "jubako_time_per_output_token_seconds": set(),
    "jubako_tokens_total": {"kind"},
    "jubako_requests_in_flight": set(),
    "jubako_queue_depth": {"priority"},
    "jubako_queue_tokens": set(),
    "jubako_refusals_total": {"code"},
    "jubako_ready": set(),
    "jubako_release_info": {"release", "digest"},
}


@pytest.fixture
def registry() -> CollectorRegistry:
    """One of this test alone."""
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    """Of a release with one model and one adapter."""
    return Metrics(registry, ["smollm2", "tiny-lora"], release="smollm2/1", digest="ab" * 32)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """One sample, or None if there is none."""
    return registry.get_sample_value(name, labels)


def series(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample but the times at which series were made."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_the_contract_s_metrics_exist_with_exactly_its_labels() -> None:
    """Names and labels are a public interface."""
    assert {name: set(FAMILIES[name].labels) for name in CONTRACT} == CONTRACT


def test_every_series_is_there_from_the_start(registry: CollectorRegistry, metrics: Metrics) -> None:
    """As zero, so that a rate sees a first event; and there are few of them."""
    del metrics
    found = series(registry)
    for (name, _), number in found.items():
        assert number == (name in {"jubako_release_info", "jubako_audit_healthy"}), name
    for outcome in Outcome:
        labels = {"route": "chat_completions", "alias": "tiny-lora", "outcome": outcome.value}
        assert value(registry, "jubako_requests_total", **labels) == 0
    assert len([name for name, _ in found if name == "jubako_queue_depth"]) == 10
    assert len(found) < 600


def test_a_scrape_has_no_more_series_after_any_traffic(registry: CollectorRegistry, metrics: Metrics) -> None:
    """Whatever callers send, and whatever went wrong with a route or a name."""
    before = series(registry).keys()
    for index in range(200):
        metrics.record(account(alias=f"made-up-{index}", tenant=f"tenant-{index}", request_id=f"id-{index}"))
        metrics.record(refused(f"code-{index}", route=f"/v1/{index}", alias="", priority=index - 100))
    assert series(registry).keys() == before
    assert value(registry, "jubako_refusals_total", code="other") == 200
    unknown = {"route": "unknown", "alias": "none", "outcome": "refused"}
    assert value(registry, "jubako_requests_total", **unknown) == 200


def test_a_release_of_many_names_does_not_fill_the_scrape(registry: CollectorRegistry) -> None:
    """Its series appear with their first use, and stay within the served names."""
    metrics = Metrics(registry, [f"adapter-{index}" for index in range(500)], release="many/1", digest="ab" * 32)
    assert len(series(registry)) < 600
    metrics.record(account(alias="adapter-7"))
    labels = {"route": "chat_completions", "alias": "adapter-7", "outcome": "completed"}
    assert value(registry, "jubako_requests_total", **labels) == 1


def test_a_completed_request_is_counted_once_everywhere(registry: CollectorRegistry, metrics: Metrics) -> None:
    """Time per output token is the time after the first token over the tokens after it."""
    metrics.record(account())
    labels = {"route": "chat_completions", "alias": "smollm2", "outcome": "completed"}
    assert value(registry, "jubako_requests_total", **labels) == 1
    assert [value(registry, "jubako_tokens_total", kind=k) for k in ("prompt", "cached", "generated")] == [20, 16, 11]
    assert value(registry, "jubako_request_duration_seconds_sum") == 3.0
    assert value(registry, "jubako_queue_wait_seconds_sum", priority="2") == 0.5
    assert value(registry, "jubako_time_to_first_token_seconds_sum") == 1.0
    assert value(registry, "jubako_time_per_output_token_seconds_sum") == pytest.approx(0.2)
    for name in ("request_duration", "time_to_first_token", "time_per_output_token"):
        assert value(registry, f"jubako_{name}_seconds_count") == 1


def test_choices_side_by_side_are_not_faster(registry: CollectorRegistry, metrics: Metrics) -> None:
    """Each choice has its own time; three at once do not make a token take a third of it."""
    three = Usage(prompt_tokens=20, generated_tokens=33, decode_tokens=30, decode_seconds=6.0)
    metrics.record(account(usage=three))
    assert value(registry, "jubako_time_per_output_token_seconds_sum") == pytest.approx(0.2)
    assert value(registry, "jubako_time_per_output_token_seconds_count") == 1


def test_one_token_has_no_time_per_output_token(registry: CollectorRegistry, metrics: Metrics) -> None:
    """There is nothing to divide by."""
    metrics.record(account(usage=Usage(prompt_tokens=20, generated_tokens=1)))
    assert value(registry, "jubako_time_per_output_token_seconds_count") == 0


def test_a_refusal_is_counted_by_its_code_and_its_time_is_not(registry: CollectorRegistry, metrics: Metrics) -> None:
    """Milliseconds of refusals would hide how long answers take."""
    metrics.record(refused("queue_full"))
    assert value(registry, "jubako_refusals_total", code="queue_full") == 1
    assert value(registry, "jubako_request_duration_seconds_count") == 0
    assert value(registry, "jubako_queue_wait_seconds_count", priority="2") == 0


def test_tokens_of_every_end_are_counted(registry: CollectorRegistry, metrics: Metrics) -> None:
    """What the ledger has, these have: cancelled, late, failed, and refused after the prompt was rendered."""
    for outcome in Outcome:
        metrics.record(account(outcome=outcome, usage=Usage(prompt_tokens=5, cached_tokens=1, generated_tokens=3)))
    assert value(registry, "jubako_tokens_total", kind="prompt") == 5 * len(Outcome)
    assert value(registry, "jubako_tokens_total", kind="generated") == 3 * len(Outcome)


def test_priorities_beyond_the_labels_count_as_the_nearest(registry: CollectorRegistry, metrics: Metrics) -> None:
    """There are ten of them, whatever an operator configures."""
    metrics.record(account(priority=-5))
    metrics.record(account(priority=1000))
    metrics.observe("jubako_queue_depth", lambda: {-5: 1, 4: 2, 9: 3, 1000: 4})
    assert value(registry, "jubako_queue_wait_seconds_count", priority="0") == 1
    assert value(registry, "jubako_queue_wait_seconds_count", priority="9") == 1
    assert [value(registry, "jubako_queue_depth", priority=p) for p in ("0", "3", "4", "9")] == [1, 0, 2, 7]


def test_gauges_are_read_when_scraped(registry: CollectorRegistry, metrics: Metrics) -> None:
    """Nothing on a request's path keeps them up to date."""
    in_flight = 3
    metrics.observe("jubako_requests_in_flight", lambda: in_flight)
    metrics.observe("jubako_ready", lambda: True)
    metrics.observe("jubako_audit_unrecorded_total", lambda: 4)
    assert value(registry, "jubako_requests_in_flight") == 3
    in_flight = 5
    assert value(registry, "jubako_requests_in_flight") == 5
    assert value(registry, "jubako_ready") == 1
    assert value(registry, "jubako_audit_unrecorded_total") == 4


def test_a_reader_that_fails_costs_its_own_metric_alone(
    registry: CollectorRegistry, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, without what the error says."""

    def broken() -> float:
        raise RuntimeError("CANARY-7f3a")

    metrics.observe("jubako_queue_tokens", broken)
    for _ in range(3):
        assert value(registry, "jubako_queue_tokens") is None
    assert value(registry, "jubako_ready") == 0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "jubako_queue_tokens" in said[0]
    assert "CANARY" not in said[0]


@pytest.mark.parametrize("name", ["jubako_requests_total", "jubako_made_up"])
def test_only_observed_metrics_can_be_observed(metrics: Metrics, name: str) -> None:
    """A misspelt name is told at the start, not missed in a dashboard."""
    with pytest.raises(ValueError, match=name):
        metrics.observe(name, lambda: 0)


def test_no_label_value_has_anything_of_a_caller(registry: CollectorRegistry, metrics: Metrics) -> None:
    """No tenant, key, request id or unapproved name, in either format."""
    canary = "canary-7f3a"
    metrics.record(account(tenant=canary, key_id=canary, request_id=canary, alias=canary, code=canary, route=canary))
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        assert canary not in exposition(registry, accept)[0].decode()


def test_both_formats_parse_and_openmetrics_links_times_to_traces(
    registry: CollectorRegistry, metrics: Metrics
) -> None:
    """Exemplars are for scrapers that ask for OpenMetrics."""
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    metrics.record(account(), trace_id)
    text, content_type = exposition(registry, "text/plain")
    assert content_type.startswith("text/plain")
    assert trace_id not in text.decode()
    assert list(text_string_to_metric_families(text.decode()))
    open_text, open_type = exposition(registry, "application/openmetrics-text; version=1.0.0")
    assert open_type.startswith("application/openmetrics-text")
    linked = {
        family.name
        for family in openmetrics_families(open_text.decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar and sample.exemplar.labels == {"trace_id": trace_id}
    }
    times = ("jubako_time_to_first_token_seconds", "jubako_time_per_output_token_seconds")
    assert linked == {"jubako_request_duration_seconds", *times}


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


def test_scrapes_and_records_side_by_side_lose_nothing(registry: CollectorRegistry, metrics: Metrics) -> None:
    """Scrapes run in a thread of their own."""
    stop = threading.Event()

    def scrape() -> None:
        while not stop.is_set():
            exposition(registry, "")

    scraper = threading.Thread(target=scrape)
    scraper.start()
    for _ in range(2000):
        metrics.record(account())
    stop.set()
    scraper.join()
    assert value(registry, "jubako_request_duration_seconds_count") == 2000


def test_a_record_is_cheap(metrics: Metrics) -> None:
    """20 microseconds are wanted; the bound is ten times that."""
    one = account()
    metrics.record(one)
    best = min(_seconds_of_thousand(metrics, one) for _ in range(5))
    assert best / 1000 < 200e-6


def _seconds_of_thousand(metrics: Metrics, one: object) -> float:
    begin = time.perf_counter()
    for _ in range(1000):
        metrics.record(one)  # type: ignore[arg-type]
    return time.perf_counter() - begin


def _refusals(kind: type[errors.Refusal] = errors.Refusal) -> list[type[errors.Refusal]]:
    return [kind, *(found for below in kind.__subclasses__() for found in _refusals(below))]


def _texts(node: ast.expr | None, constants: dict[str, str]) -> list[str]:
    """The texts that an expression can be, as far as they are written out in its module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Name) and node.id in constants:
        return [constants[node.id]]
    if isinstance(node, ast.IfExp):
        return _texts(node.body, constants) + _texts(node.orelse, constants)
    return []


def _codes_in(path: Path) -> set[str]:
    """What is passed as `code=…`, is its default, or is assigned to a variable or attribute of that name."""
    found: list[str] = []
    module = ast.parse(path.read_text())
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg == "code":
            found += _texts(node.value, constants)
        elif isinstance(node, ast.arguments):
            pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            found += [text for arg, default in pairs if arg.arg == "code" for text in _texts(default, constants)]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {getattr(target, "id", getattr(target, "attr", "")) for target in targets}
            if names & {"code", "default_code"}:
                found += _texts(node.value, constants)
    return {code for code in found if code}


def test_every_code_that_can_be_told_is_listed() -> None:
    """A code that the metrics do not know would be counted as `other`: list it in `telemetry.metrics.CODES`."""
    said = {refusal.default_code for refusal in _refusals()}
    for path in (REPOSITORY / "src").rglob("*.py"):
        said |= _codes_in(path)
    assert not said - set(CODES)
    assert list(CODES) == sorted(set(CODES))
    assert all(re.fullmatch(r"[a-z_]{3,40}", code) for code in CODES)


def test_the_search_for_codes_finds_the_ways_they_are_written(tmp_path: Path) -> None:
    """Else the test above would pass for the wrong reason."""
    source = tmp_path / "source.py"
    source.write_text(
        "FIVE = 'five'\nraise Busy('', code='one')\ncode = 'two' if x else 'three'\n"
        "class A:\n    default_code: str = 'four'\ndef f(*, code=FIVE): ...\n"
    )
    assert _codes_in(source) == {"one", "two", "three", "four", "five"}
    assert "engine_unavailable" in _codes_in(REPOSITORY / "src/jubako/life.py")


def test_the_page_of_metrics_is_current() -> None:
    """Made by `python -m jubako.telemetry.reference > docs/METRICS.md`."""
    page = (REPOSITORY / "docs" / "METRICS.md").read_text()
    assert page == reference.markdown()
    assert all(f"`{route.value}`" in page or route.value in page for route in Route)


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
