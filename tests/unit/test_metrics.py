"""Metrics: each request counted once, labels from closed sets, every series from the start."""

from __future__ import annotations

import threading
import time

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from jubako.telemetry import reference
from jubako.telemetry.metrics import FAMILIES, Metrics, exposition
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


def test_the_page_of_metrics_is_current() -> None:
    """Made by `python -m jubako.telemetry.reference > docs/METRICS.md`."""
    page = (REPOSITORY / "docs" / "METRICS.md").read_text()
    assert page == reference.markdown()
    assert all(f"`{route.value}`" in page or route.value in page for route in Route)
