"""An OTLP collector of a few lines, over HTTP or gRPC: it keeps the spans it gets. It knows nothing of Jubako."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass
class Received:
    """What came in; `headers` are those of each request."""

    endpoint: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        """Every span, in the order of arrival."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        self.requests.append(request)
        self.headers.append({name.lower(): value for name, value in headers.items()})


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@contextmanager
def over_http() -> Iterator[Received]:
    """A collector on a free port of the loopback."""
    received = Received()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            received.paths.append(self.path)
            received.take(ExportTraceServiceRequest.FromString(body), dict(self.headers))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield received
        server.shutdown()
        thread.join()


@contextmanager
def over_grpc() -> Iterator[Received]:
    """The same, over gRPC without TLS."""
    received = Received()

    class Servicer(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in the protocol
            received.take(request, dict(context.invocation_metadata()))
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Servicer(), server)  # type: ignore[no-untyped-call]
    received.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield received
    server.stop(0).wait()
