"""Spans, made once a request at its end from the times that it took, and sent to an OTLP collector.

Owns OpenTelemetry, which is imported only if there is an endpoint: without one a request costs one comparison. The
token path never knows of it. Attribute names are those of the GenAI semantic conventions 0.1.0 (client inference, the
nearest there is to a server's) and of the general ones 1.44; no span has content.

A collector that is away or slow costs spans, which are counted, and never time: the queue is bounded, and the thread
that empties it is the only one that waits.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from jubako import __version__
from jubako.errors import StartupFault
from jubako.sections import TracingSettings
from jubako.vocabulary import Account, Outcome, Route

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

QUEUE_SPANS = 4096
BATCH_SPANS = 512
BATCH_SECONDS = 5.0
"""A batch costs as much to send as dozens of spans to make; nobody looks at a trace sooner."""
EXPORT_SECONDS = 10.0
_NANOSECONDS = 1_000_000_000
_OPERATIONS = {Route.CHAT.value: "chat", Route.COMPLETIONS.value: "text_completion"}
_SERVER_ERROR = 500
_LOW_BITS = (1 << 64) - 1
"""Of a trace id: what decides whether it is in a share of all."""


class Tracing:
    """The spans of one server. `open` makes it; without an endpoint `trace` does nothing."""

    def __init__(self, settings: TracingSettings, root: Path, *, release: str) -> None:
        self._maker: _Maker | None = None
        self._outbox: _Outbox | None = None
        if settings.endpoint is not None:
            self._outbox = _Outbox(_exporter(settings, root))
            self._maker = _Maker(settings.ratio, release)

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
        maker, outbox = self._maker, self._outbox
        if maker is None or outbox is None:
            return ""
        context, parent = maker.place(traceparent if account.tenant else None)
        if not context.trace_flags.sampled:
            return ""
        for span in maker.spans(account, context, parent, queued_after_seconds):
            outbox.put(span)
        return f"{context.trace_id:032x}"

    def close(self, timeout_seconds: float) -> None:
        """Send what is left within `timeout_seconds`, then drop it. Blocks; to be called in a thread."""
        self._maker = None
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
    if account.code:
        found["error.type"] = account.code
    return found


class _Maker:
    """Makes spans that are over already: the SDK's live ones cost five times as much to begin, fill and end.

    Which requests are traced is decided as its ParentBased(TraceIdRatioBased) does.
    """

    def __init__(self, ratio: float, release: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # The orchestrator's OTEL_RESOURCE_ATTRIBUTES (pod, node, region) are taken in by `create`.
        self._resource = Resource.create(
            {"service.name": "jubako", "service.version": __version__, "jubako.release.digest": release}
        )
        self._scope = InstrumentationScope("jubako", __version__)
        self._bound = TraceIdRatioBased.get_bound_for_rate(ratio)
        self._propagator = TraceContextTextMapPropagator()

    def place(self, traceparent: str | None) -> tuple[SpanContext, SpanContext | None]:
        """Where the request's span is: in a trace of its own, or below its caller's."""
        from opentelemetry.trace import SpanContext, TraceFlags, get_current_span

        parent = None
        if traceparent is not None:
            told = get_current_span(self._propagator.extract({"traceparent": traceparent})).get_span_context()
            parent = told if told.is_valid else None
        if parent is not None:
            trace_id, flags = parent.trace_id, TraceFlags(parent.trace_flags & TraceFlags.SAMPLED)
        else:
            trace_id = secrets.randbits(127) + 1
            sampled = trace_id & _LOW_BITS < self._bound
            flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(trace_id, _span_id(), is_remote=False, trace_flags=flags), parent

    def spans(
        self, account: Account, context: SpanContext, parent: SpanContext | None, queued_after_seconds: float
    ) -> Iterator[ReadableSpan]:
        """The request's span, and one for each step within it."""
        from opentelemetry.sdk.trace import ReadableSpan as EndedSpan
        from opentelemetry.trace import SpanContext as Context
        from opentelemetry.trace import SpanKind, Status, StatusCode

        end = round(account.ended_at * _NANOSECONDS)
        start = end - round(account.total_seconds * _NANOSECONDS)
        operation = _OPERATIONS.get(account.route, account.route)
        # A caller's mistake is no error of the server's span; what the server owed and did not give is.
        failed = account.outcome in {Outcome.FAILED, Outcome.DEADLINE} or account.status >= _SERVER_ERROR
        yield EndedSpan(
            f"{operation} {account.alias}" if account.alias else operation,
            context,
            parent,
            self._resource,
            _attributes(account, operation),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=start,
            end_time=end,
            instrumentation_scope=self._scope,
        )
        for step, begin, finish in _steps(account, start, end, queued_after_seconds):
            yield EndedSpan(
                step,
                Context(context.trace_id, _span_id(), is_remote=False, trace_flags=context.trace_flags),
                context,
                self._resource,
                {},
                start_time=begin,
                end_time=finish,
                instrumentation_scope=self._scope,
            )


def _span_id() -> int:
    return secrets.randbits(63) + 1


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
    """A bounded queue of ended spans and the thread that sends them; the SDK's own does not say what it drops.

    A span that is put wakes nobody: the thread looks every few seconds, or sooner when a whole batch is there.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.dropped = 0
        self._exporter = exporter
        self._spans: deque[ReadableSpan] = deque()
        self._counting = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._send_all, name="spans", daemon=True)
        self._thread.start()

    def put(self, span: ReadableSpan) -> None:
        """Take a span, or count it as dropped; returns at once."""
        if len(self._spans) >= QUEUE_SPANS:
            self._drop(1)
            return
        self._spans.append(span)
        if len(self._spans) == BATCH_SPANS:
            self._wake.set()

    def close(self, timeout_seconds: float) -> None:
        """Send the rest, give up after `timeout_seconds`."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_seconds)
        while batch := self._batch():
            self._drop(len(batch))
        self._exporter.shutdown()

    def _drop(self, spans: int) -> None:
        with self._counting:
            self.dropped += spans

    def _send_all(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(BATCH_SECONDS)
            self._wake.clear()
            closing = self._closing  # before the look: what was put before `close` is sent
            while batch := self._batch():
                self._send(batch)

    def _batch(self) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        with suppress(IndexError):  # empty, perhaps because `close` has given up
            while len(batch) < BATCH_SPANS:
                batch.append(self._spans.popleft())
        return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export(batch)
        except Exception:  # noqa: BLE001 - whatever a collector does, the next batch is tried
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._drop(len(batch))
