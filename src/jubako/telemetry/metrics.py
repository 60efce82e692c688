"""Jubako's metrics: the one place that knows every name, label and bucket.

Labels come from sets that are closed when the server starts: routes, served names, outcomes, codes, priorities. Nothing
that a caller or tenant can choose becomes a label: what is not in its set is counted as `unknown`, `none` or `other`.

What a request was is told once, at its end (`record`). What is true at this moment is read when it is scraped
(`observe`): nothing on a request's path keeps a gauge up to date. vLLM's own metrics are in the same registry and not
touched. Knows nothing of how a scrape reaches it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from jubako.start_times import StartPhase
from jubako.telemetry.logs import place
from jubako.vocabulary import Account, Outcome, Route

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["CODES", "FAMILIES", "REGISTRY", "Family", "Metrics", "exposition", "observe_all"]
"""REGISTRY is the client library's default one: vLLM's metrics and the process' own are in it."""

logger = logging.getLogger(__name__)

CODES = (
    "body_timeout",
    "concurrency_exceeded",
    "context_length_exceeded",
    "deadline_exceeded",
    "draining",
    "engine_unavailable",
    "expired_token",
    "insufficient_quota",
    "internal_error",
    "invalid_api_key",
    "invalid_header",
    "invalid_json",
    "invalid_value",
    "method_not_allowed",
    "missing_api_key",
    "missing_field",
    "model_not_found",
    "not_ready",
    "queue_full",
    "rate_limit_exceeded",
    "request_too_large",
    "scope_missing",
    "tenant_suspended",
    "unknown_field",
    "unknown_url",
    "unsupported_media_type",
    "unsupported_value",
    "wait_too_long",
)
"""Every code a refusal may have. A test compares it with what the code says, so that none is counted as `other`."""
OTHER_CODE = "other"
UNKNOWN_ROUTE = "unknown"
_ROUTES = frozenset(route.value for route in Route)
NO_ALIAS = "none"
PRIORITIES = 10
"""Labels are 0 to 9; what is beyond counts as the nearest."""
MAX_SERIES_AT_START = 1000
"""Of `jubako_requests_total`. A release with more names than that allows has its series appear with their first use."""

DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
WAIT_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0, 120.0),
)
OUTPUT_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0),
)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric as it is exposed, and as docs/METRICS.md describes it."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    observed: bool = False
    """Read when scraped, from what `Metrics.observe` was given."""
    unobserved: float = 0.0
    """Its value as long as nothing was given."""


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "jubako_requests_total",
            "counter",
            "Requests by how they ended.",
            ("route", "alias", "outcome"),
        ),
        Family(
            "jubako_refusals_total",
            "counter",
            "Requests that were refused or ended in an error, by the code their caller was told.",
            ("code",),
        ),
        Family(
            "jubako_request_duration_seconds",
            "histogram",
            "From arrival to the reply's end, of requests for a served model that were not refused.",
            buckets=DURATION_BUCKETS,
        ),
        Family(
            "jubako_queue_wait_seconds",
            "histogram",
            "Wait in the queue in front of the engine, of the same requests.",
            ("priority",),
            WAIT_BUCKETS,
        ),
        Family(
            "jubako_time_to_first_token_seconds",
            "histogram",
            "From arrival to the first token, of requests that had one.",
            buckets=FIRST_TOKEN_BUCKETS,
        ),
        Family(
            "jubako_time_per_output_token_seconds",
            "histogram",
            "From the first to the last token of each choice, divided by the tokens after the first; once a request.",
            buckets=OUTPUT_TOKEN_BUCKETS,
        ),
        Family(
            "jubako_tokens_total",
            "counter",
            "Tokens as they are accounted for: prompt, of those cached (not computed again), and generated.",
            ("kind",),
        ),
        Family("jubako_requests_in_flight", "gauge", "Requests that have arrived and not ended.", observed=True),
        Family(
            "jubako_queue_depth",
            "gauge",
            "Requests in the queue in front of the engine.",
            ("priority",),
            observed=True,
        ),
        Family("jubako_queue_tokens", "gauge", "Estimated tokens of all queued requests.", observed=True),
        Family(
            "jubako_request_body_held_bytes",
            "gauge",
            "Bytes of request bodies that are being read or parsed, of all requests together.",
            observed=True,
        ),
        Family(
            "jubako_start_seconds",
            "gauge",
            "How long each phase of the last start took; 0 until the server was ready.",
            ("phase",),
        ),
        Family("jubako_ready", "gauge", "1 when the server takes traffic, else 0.", observed=True),
        Family("jubako_release_info", "info", "The release that is served, and its digest.", ("release", "digest")),
        Family(
            "jubako_admission_limit_sequences",
            "gauge",
            "Sequences that the admission lets run at once, as it found for the wanted pace.",
            observed=True,
        ),
        Family("jubako_running_sequences", "gauge", "Sequences that were admitted and have not left.", observed=True),
        Family(
            "jubako_engine_step_age_seconds",
            "gauge",
            "Time since the engine's last step while it has work, else 0.",
            observed=True,
        ),
        Family(
            "jubako_ledger_pending_records",
            "gauge",
            "Requests that are in the audit and not in the ledger yet.",
            observed=True,
        ),
        Family(
            "jubako_ledger_lag_seconds",
            "gauge",
            "How long ago the ledger had all that the audit has; 0 while it does.",
            observed=True,
        ),
        Family(
            "jubako_audit_healthy",
            "gauge",
            "1 as long as requests can be put on record, else 0; new ones are refused then.",
            observed=True,
            unobserved=1.0,
        ),
        Family(
            "jubako_audit_unrecorded_total",
            "counter",
            "Requests that ended, other than refused, while the audit could not be written; each is in the log.",
            observed=True,
        ),
        Family(
            "jubako_spans_dropped_total",
            "counter",
            "Spans that no collector took: it was away, or too slow.",
            observed=True,
        ),
        Family(
            "jubako_log_lines_dropped_total",
            "counter",
            "Lines that the serving process could not log, as nobody read its standard error for long.",
            observed=True,
        ),
    )
}

Observed = Callable[[], float | Mapping[int, float]]
"""A value, or one for each priority. Called from the thread of a scrape: it must read and nothing else."""


class Metrics:
    """The metrics of one server, in `registry`; `aliases` are all served names, adapters included."""

    def __init__(self, registry: CollectorRegistry, aliases: Iterable[str], *, release: str, digest: str) -> None:
        self._aliases = frozenset(aliases)
        self._requests = _counter(registry, "jubako_requests_total")
        self._ends = self._series_of_requests()
        refusals = _counter(registry, "jubako_refusals_total")
        self._refusals = {code: refusals.labels(code) for code in (*CODES, OTHER_CODE)}
        self._duration = _histogram(registry, "jubako_request_duration_seconds")
        waits = _histogram(registry, "jubako_queue_wait_seconds")
        self._waits = [waits.labels(str(priority)) for priority in range(PRIORITIES)]
        self._first_token = _histogram(registry, "jubako_time_to_first_token_seconds")
        self._output_token = _histogram(registry, "jubako_time_per_output_token_seconds")
        tokens = _counter(registry, "jubako_tokens_total")
        self._prompt, self._cached, self._generated = (tokens.labels(k) for k in ("prompt", "cached", "generated"))
        info = FAMILIES["jubako_release_info"]
        Info(info.name.removesuffix("_info"), info.help, registry=registry).info({"release": release, "digest": digest})
        start = Gauge(
            FAMILIES["jubako_start_seconds"].name, FAMILIES["jubako_start_seconds"].help, ("phase",), registry=registry
        )
        self._start = {phase: start.labels(phase.value) for phase in StartPhase}
        self._observed = _Observations()
        registry.register(self._observed)

    def _series_of_requests(self) -> dict[tuple[str, str, Outcome], Counter]:
        """Every series that requests can be expected to have, from the start, so that rates of the first are right."""
        generating = (Route.CHAT.value, Route.COMPLETIONS.value)
        pairs = [(route, NO_ALIAS) for route in (*(route.value for route in Route), UNKNOWN_ROUTE)]
        named = [(route, alias) for route in generating for alias in sorted(self._aliases)]
        if (len(pairs) + len(named)) * len(Outcome) <= MAX_SERIES_AT_START:
            pairs += named
        return {
            (route, alias, outcome): self._requests.labels(route, alias, outcome.value)
            for route, alias in pairs
            for outcome in Outcome
        }

    def record(self, account: Account, trace_id: str = "") -> None:
        """Count one request at its end; `trace_id` links the times it took to its trace."""
        alias = account.alias if account.alias in self._aliases else NO_ALIAS
        end = self._ends.get((account.route, alias, account.outcome)) or self._rare(account, alias)
        end.inc()
        if account.code:
            (self._refusals.get(account.code) or self._refusals[OTHER_CODE]).inc()
        usage = account.usage
        if usage.prompt_tokens:
            # Whatever became of the request: what the ledger has, these have.
            self._prompt.inc(usage.prompt_tokens)
            self._cached.inc(usage.cached_tokens)
            self._generated.inc(usage.generated_tokens)
        if alias is NO_ALIAS or account.outcome is Outcome.REFUSED:
            return
        exemplar = {"trace_id": trace_id} if trace_id else None
        self._duration.observe(account.total_seconds, exemplar)
        self._waits[min(max(account.priority, 0), PRIORITIES - 1)].observe(account.queue_seconds)
        if account.first_token_seconds > 0:
            self._first_token.observe(account.first_token_seconds, exemplar)
            if usage.decode_tokens:
                # Choices are made side by side: each has its own time, and a choice counts by its tokens.
                self._output_token.observe(usage.decode_seconds / usage.decode_tokens, exemplar)

    def _rare(self, account: Account, alias: str) -> Counter:
        route = account.route if account.route in _ROUTES else UNKNOWN_ROUTE
        key = (route, alias, account.outcome)
        if key not in self._ends:
            self._ends[key] = self._requests.labels(route, alias, account.outcome.value)
        return self._ends[key]

    def started(self, seconds: Mapping[StartPhase, float]) -> None:
        """The server is ready, and its start took so long."""
        for phase, took in seconds.items():
            self._start[phase].set(took)

    def observe(self, name: str, read: Observed) -> None:
        """Read the metric `name` with `read` at each scrape from now on; one that fails is left out of that scrape."""
        if name not in FAMILIES or not FAMILIES[name].observed:
            raise ValueError(f"{name} is not a metric that is observed; see FAMILIES")
        self._observed.readers[name] = read


class _Observations(Collector):
    """The metrics that are read when they are scraped."""

    def __init__(self) -> None:
        self.readers: dict[str, Observed] = {}
        self._complained: set[str] = set()

    def describe(self) -> Iterable[Metric]:
        """The names, which the registry wants without values."""
        return [_family(family) for family in FAMILIES.values() if family.observed]

    def collect(self) -> Iterable[Metric]:
        """Every value of this moment."""
        return [self._read(family) for family in FAMILIES.values() if family.observed]

    def _read(self, family: Family) -> Metric:
        metric = _family(family)
        reader = self.readers.get(family.name)
        try:
            value = family.unobserved if reader is None else reader()
        except Exception as error:  # noqa: BLE001 - one broken reader must not cost all other metrics
            if family.name not in self._complained:
                self._complained.add(family.name)
                logger.error("metric %s cannot be read: %s", family.name, place(error))
            return metric
        if not family.labels:
            metric.add_metric([], float(value) if not isinstance(value, Mapping) else sum(value.values()))
            return metric
        by_priority = dict.fromkeys(range(PRIORITIES), 0.0)
        for priority, count in (value if isinstance(value, Mapping) else {0: value}).items():
            by_priority[min(max(priority, 0), PRIORITIES - 1)] += count
        for priority, count in by_priority.items():
            metric.add_metric([str(priority)], count)
        return metric


def observe_all(histogram: Histogram, amounts: Sequence[float]) -> None:
    """`histogram.observe` for each of `amounts`: what it shows is the same, and a bucket is touched once."""
    histogram._sum.inc(sum(amounts))  # noqa: SLF001 - the library has no observation of many
    bounds = histogram._upper_bounds  # noqa: SLF001
    for bucket, count in Tally(bisect_left(bounds, amount) for amount in amounts).items():
        histogram._buckets[bucket].inc(count)  # noqa: SLF001


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All metrics and their content type, as a scraper that sends `accept` wants them; OpenMetrics has exemplars."""
    try:
        wanted = choose_encoder(accept)[1]
    except (TypeError, ValueError):  # a version that is no number
        wanted = CONTENT_TYPE_PLAIN_0_0_4
    if wanted.startswith("application/openmetrics-text"):
        # Its own choice of escaping would turn vLLM's colons into underscores; no name here needs any.
        text = openmetrics.generate_latest(registry, escaping=openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


def _family(family: Family) -> GaugeMetricFamily | CounterMetricFamily:
    made = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return made(family.name, family.help, labels=family.labels)


def _counter(registry: CollectorRegistry, name: str) -> Counter:
    return Counter(name, FAMILIES[name].help, FAMILIES[name].labels, registry=registry)


def _histogram(registry: CollectorRegistry, name: str) -> Histogram:
    family = FAMILIES[name]
    return Histogram(name, family.help, family.labels, registry=registry, buckets=family.buckets)
