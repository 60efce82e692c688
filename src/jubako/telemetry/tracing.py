"""Spans, made once a request at its end from the times that it took, and sent to an OTLP collector.

Owns OpenTelemetry, which is imported only if there is an endpoint: without one a request costs one comparison. The
token path never knows of it. Attribute names are those of the GenAI semantic conventions 0.1.0 (client inference, the
nearest there is to a server's) and of the general ones 1.44; no span has content.

A collector that is away or slow costs spans, which are counted, and never time: the queue is bounded, and the thread
that empties it is the only one that waits.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jubako import __version__
from jubako.errors import StartupFault
from jubako.sections import TracingSettings
from jubako.vocabulary import Account, Outcome, Route

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

QUEUE_SPANS = 4096
BATCH_SPANS = 512
BATCH_SECONDS = 1.0
EXPORT_SECONDS = 10.0
_NANOSECONDS = 1_000_000_000
_OPERATIONS = {Route.CHAT.value: "chat", Route.COMPLETIONS.value: "text_completion"}
_SERVER_ERROR = 500


class Tracing:
    """The spans of one server. `open` makes it; without an endpoint `trace` does nothing."""

    def __init__(self, settings: TracingSettings, root: Path, *, release: str) -> None:
        self._tracer: Tracer | None = None
        self._outbox: _Outbox | None = None
        if settings.endpoint is not None:
            self._outbox = _Outbox(_exporter(settings, root))
            self._tracer = _tracer(settings.ratio, self._outbox.processor(), release)

    @property
    def dropped_spans(self) -> int:
        """Spans that were made and that no collector took."""
        return self._outbox.dropped if self._outbox is not None else 0

    def trace(self, account: Account, *, queued_after_seconds: float, traceparent: str | None) -> str:
        """Make the spans of one request at its end; its trace id as hexadecimal, or empty if it is not traced.

        `queued_after_seconds` is from arrival to the place in the queue, zero if the request never had one.
        `traceparent` is the request's header. It is followed for authenticated callers only: others could make the
        server trace at will.
        """
        if self._tracer is None or self._outbox is None:
            return ""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = None
        if traceparent is not None and account.tenant:
            parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
        end = round(account.ended_at * _NANOSECONDS)
        start = end - round(account.total_seconds * _NANOSECONDS)
        operation = _OPERATIONS.get(account.route, account.route)
        name = f"{operation} {account.alias}" if account.alias else operation
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, start_time=start)
        if span.is_recording():
            span.set_attributes(_attributes(account, operation))
            _mark_error(span, account)
            for step in _steps(account, start, end, queued_after_seconds):
                self._outbox.put(_inside(span, *step))
        span.end(end)
        context = span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    def close(self, timeout_seconds: float) -> None:
        """Send what is left within `timeout_seconds`, then drop it. Blocks; to be called in a thread."""
        self._tracer = None
        if self._outbox is not None:
            self._outbox.close(timeout_seconds)


def _steps(account: Account, start: int, end: int, queued_after_seconds: float) -> list[tuple[str, int, int]]:
    """Name, begin and finish of what the request went through, in order, within the request."""
    if not queued_after_seconds:
        return []
    queued = min(start + round(queued_after_seconds * _NANOSECONDS), end)
    admitted = min(queued + round(account.queue_seconds * _NANOSECONDS), end)
    steps = [("queue", queued, admitted)]
    if account.first_token_seconds > 0:
        first = max(min(start + round(account.first_token_seconds * _NANOSECONDS), end), admitted)
        steps += [("prefill", admitted, first), ("decode", first, end)]
    elif account.usage.prompt_tokens:
        steps.append(("prefill", admitted, end))
    return steps


def _inside(span: Any, name: str, begin: int, finish: int) -> ReadableSpan:
    """A span within `span`, which is over already: a live one of the SDK costs four times as much to make and end."""
    from opentelemetry.sdk.trace import ReadableSpan as EndedSpan
    from opentelemetry.trace import SpanContext

    parent = span.get_span_context()
    return EndedSpan(
        name,
        SpanContext(parent.trace_id, secrets.randbits(63) + 1, is_remote=False, trace_flags=parent.trace_flags),
        parent,
        resource=span.resource,
        instrumentation_scope=span.instrumentation_scope,
        start_time=begin,
        end_time=finish,
    )


def _attributes(account: Account, operation: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "http.response.status_code": account.status,
        "jubako.request.id": account.request_id,
        "jubako.route": account.route,
        "jubako.outcome": account.outcome.value,
        "jubako.tenant": account.tenant,
        "jubako.key.id": account.key_id,
        "jubako.priority": account.priority,
    }
    if account.route in _OPERATIONS:
        found |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "vllm"}
        found["gen_ai.request.stream"] = account.stream
    if account.alias:
        found |= {"gen_ai.request.model": account.alias, "gen_ai.response.model": account.alias}
    usage = account.usage
    if usage.prompt_tokens:
        found["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        found["gen_ai.usage.output_tokens"] = usage.generated_tokens
    if account.stream and account.first_token_seconds > 0:
        found["gen_ai.response.time_to_first_chunk"] = account.first_token_seconds
    return found


def _mark_error(span: Span, account: Account) -> None:
    """A caller's mistake is no error of the server's span; what the server owed and did not give is."""
    from opentelemetry.trace import Status, StatusCode

    if account.code:
        span.set_attribute("error.type", account.code)
    if account.outcome in {Outcome.FAILED, Outcome.DEADLINE} or account.status >= _SERVER_ERROR:
        span.set_status(Status(StatusCode.ERROR))


def _tracer(ratio: float, processor: SpanProcessor, release: str) -> Tracer:
    """A tracer of our own provider: BentoML's global one has other rules."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # The orchestrator's OTEL_RESOURCE_ATTRIBUTES (pod, node, region) are taken in by `create`.
    resource = Resource.create(
        {"service.name": "jubako", "service.version": __version__, "jubako.release.digest": release}
    )
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider.get_tracer("jubako", __version__)


def _exporter(settings: TracingSettings, root: Path) -> SpanExporter:
    endpoint = settings.endpoint or ""
    headers = _headers(root / settings.headers_file) if settings.headers_file is not None else {}
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        insecure = urlsplit(endpoint).scheme == "http"
        return GrpcExporter(endpoint, insecure, headers=headers, timeout=EXPORT_SECONDS)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    if urlsplit(endpoint).path in {"", "/"}:
        endpoint = endpoint.rstrip("/") + "/v1/traces"
    return HttpExporter(endpoint, headers=headers, timeout=EXPORT_SECONDS)


def _headers(path: Path) -> dict[str, str]:
    """Lines of `name: value`; raises `StartupFault` without the value, which is a secret."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupFault(f"telemetry.tracing.headers_file: {path}: cannot be read: {type(error).__name__}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not name.strip() or not value.strip():
            raise StartupFault(f"telemetry.tracing.headers_file: {path}:{number}: write `name: value`")
        found[name.strip().lower()] = value.strip()
    return found


class _Outbox:
    """A bounded queue of ended spans and the thread that sends them; the SDK's own does not say what it drops."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.dropped = 0
        self._exporter = exporter
        self._spans: queue.Queue[ReadableSpan | None] = queue.Queue(QUEUE_SPANS)
        self._counting = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="spans", daemon=True)
        self._thread.start()

    def processor(self) -> SpanProcessor:
        """What a tracer's provider hands ended spans to."""
        from opentelemetry.sdk.trace import SpanProcessor

        outbox = self

        class _Processor(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                outbox.put(span)

        return _Processor()

    def put(self, span: ReadableSpan) -> None:
        """Take a span, or count it as dropped; returns at once."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        try:
            self._spans.put_nowait(span)
        except queue.Full:
            self._drop(1)

    def close(self, timeout_seconds: float) -> None:
        """Send the rest, give up after `timeout_seconds`."""
        self._closing.set()
        with suppress(queue.Full):
            self._spans.put_nowait(None)  # wakes the thread; with a full queue it does not sleep
        self._thread.join(timeout_seconds)
        with suppress(queue.Empty):
            while True:
                self._drop(self._spans.get_nowait() is not None)
        self._exporter.shutdown()

    def _drop(self, spans: int) -> None:
        with self._counting:
            self.dropped += spans

    def _send_all(self) -> None:
        while not (self._closing.is_set() and self._spans.empty()):
            batch = self._batch()
            if batch:
                self._send(batch)

    def _batch(self) -> list[ReadableSpan]:
        """The spans of the next second, or fewer if that many came sooner."""
        batch: list[ReadableSpan] = []
        until = time.monotonic() + BATCH_SECONDS
        while len(batch) < BATCH_SPANS:
            left = 0.0 if self._closing.is_set() else until - time.monotonic()
            try:
                span = self._spans.get(timeout=left) if left > 0 else self._spans.get_nowait()
            except queue.Empty:
                break
            if span is not None:
                batch.append(span)
        return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export(batch)
        except Exception:  # noqa: BLE001 - whatever a collector does, the next batch is tried
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._drop(len(batch))
