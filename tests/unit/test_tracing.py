"""Tracing: spans of one request reach a collector, a collector that is away costs nothing but spans, off is free."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jubako.errors import StartupFault
from jubako.sections import TracingSettings
from jubako.settings import load
from jubako.telemetry import tracing
from jubako.telemetry.tracing import Tracing
from jubako.vocabulary import Outcome, Usage
from tests.ended_requests import account, refused
from tests.otlp_receiver import Received, attributes, over_grpc, over_http
from tests.project import REPOSITORY, free_port

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
NOT_SAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"
SECOND = 1_000_000_000
END = 1_800_000_003 * SECOND
UNSET, ERROR = 0, 2


def settings(**changes: Any) -> TracingSettings:
    """Off, but for `changes`."""
    fields = {"endpoint": None, "protocol": "http", "ratio": 1.0, "headers_file": None}
    return TracingSettings.model_validate(fields | changes)


@contextmanager
def opened(root: Path, **changes: Any) -> Iterator[Tracing]:
    """Tracing for as long as the block runs; at its end everything has been sent."""
    made = Tracing(settings(**changes), root, release="ab" * 32)
    yield made
    made.close(5)


@pytest.fixture(params=["http", "grpc"])
def collector(request: pytest.FixtureRequest) -> Iterator[tuple[str, Received]]:
    """A protocol, and a collector that speaks it."""
    with (over_http if request.param == "http" else over_grpc)() as received:
        yield request.param, received


@pytest.fixture
def received() -> Iterator[Received]:
    """A collector over HTTP."""
    with over_http() as found:
        yield found


def by_name(received: Received) -> dict[str, Any]:
    """The spans that came, by name."""
    return {span.name: span for span in received.spans}


def test_a_request_s_spans_reach_a_collector_with_their_times(tmp_path: Path, collector: tuple[str, Received]) -> None:
    """Queue, prefill and decode follow each other inside the request, under the caller's trace."""
    protocol, received = collector
    with opened(tmp_path, endpoint=received.endpoint, protocol=protocol) as traced:
        assert traced.trace(account(), queued_after_seconds=0.1, traceparent=PARENT) == TRACE
    assert traced.dropped_spans == 0
    spans = by_name(received)
    assert set(spans) == {"chat smollm2", "queue", "prefill", "decode"}
    server = spans.pop("chat smollm2")
    assert server.kind == server.SPAN_KIND_SERVER
    assert server.parent_span_id.hex() == "b7ad6b7169203331"
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert {span.parent_span_id for span in spans.values()} == {server.span_id}
    times = {name: (span.start_time_unix_nano - END, span.end_time_unix_nano - END) for name, span in spans.items()}
    assert (server.start_time_unix_nano - END, server.end_time_unix_nano - END) == (-3 * SECOND, 0)
    tenth = SECOND // 10
    assert times == {
        "queue": (-29 * tenth, -24 * tenth),
        "prefill": (-24 * tenth, -20 * tenth),
        "decode": (-20 * tenth, 0),
    }


def test_attributes_follow_the_genai_conventions(tmp_path: Path, received: Received) -> None:
    """Numbers and configured names; nothing else."""
    with opened(tmp_path, endpoint=received.endpoint) as traced:
        traced.trace(account(), queued_after_seconds=0.1, traceparent=None)
    assert attributes(by_name(received)["chat smollm2"]) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "smollm2",
        "gen_ai.response.model": "smollm2",
        "gen_ai.request.stream": True,
        "gen_ai.response.time_to_first_chunk": 1.0,
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.usage.output_tokens": 11,
        "http.response.status_code": 200,
        "jubako.request.id": "request-1",
        "jubako.route": "chat_completions",
        "jubako.outcome": "completed",
        "jubako.tenant": "acme",
        "jubako.key.id": "key-1",
        "jubako.priority": 2,
    }
    resource = attributes(received.requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "jubako"
    assert resource["jubako.release.digest"] == "ab" * 32


def test_names_of_attributes_are_those_that_the_installed_conventions_know() -> None:
    """So that an upgrade which renames one is noticed."""
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for name in tracing._attributes(account(), "chat") if name.startswith("gen_ai.")}
    assert used <= known


@pytest.mark.parametrize(
    ("changes", "steps", "status"),
    [
        ({"outcome": Outcome.FAILED, "code": "internal_error", "first_token_seconds": 0.0},
         ["queue", "prefill"], ERROR),
        ({"outcome": Outcome.DEADLINE, "code": "deadline_exceeded", "usage": Usage(), "first_token_seconds": 0.0},
         ["queue"], ERROR),
        ({"outcome": Outcome.CANCELLED, "status": 499}, ["queue", "prefill", "decode"], UNSET),
        ({"outcome": Outcome.REFUSED, "status": 503, "code": "draining", "usage": Usage(), "first_token_seconds": 0.0},
         ["queue"], ERROR),
    ],
)  # fmt: skip
def test_spans_show_how_far_a_request_came(
    tmp_path: Path, received: Received, changes: dict[str, Any], steps: list[str], status: int
) -> None:
    """And that it ended in an error of the server, if it did."""
    ended = account(**changes)
    with opened(tmp_path, endpoint=received.endpoint) as traced:
        traced.trace(ended, queued_after_seconds=0.1, traceparent=None)
    spans = by_name(received)
    server = spans.pop("chat smollm2")
    assert list(spans) == steps
    assert server.status.code == status
    assert attributes(server).get("error.type", "") == ended.code


def test_a_refusal_has_one_span_and_is_no_error_of_the_server(tmp_path: Path, received: Received) -> None:
    """It was not in the queue, and the caller can mend it."""
    with opened(tmp_path, endpoint=received.endpoint) as traced:
        traced.trace(refused("queue_full"), queued_after_seconds=0, traceparent=None)
    (span,) = received.spans
    assert span.status.code == UNSET
    assert attributes(span)["error.type"] == "queue_full"


def test_steps_never_leave_the_request(tmp_path: Path, received: Received) -> None:
    """Whatever times were noted: clocks of two kinds may disagree by a little."""
    odd = account(queue_seconds=9.0, first_token_seconds=0.05, total_seconds=1.0)
    with opened(tmp_path, endpoint=received.endpoint) as traced:
        traced.trace(odd, queued_after_seconds=0.9, traceparent=None)
    spans = by_name(received)
    server = spans["chat smollm2"]
    for span in spans.values():
        assert server.start_time_unix_nano <= span.start_time_unix_nano
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= server.end_time_unix_nano


def test_the_caller_s_choice_to_trace_is_followed(tmp_path: Path, received: Received) -> None:
    """Both ways, over the ratio."""
    with opened(tmp_path, endpoint=received.endpoint, ratio=0) as traced:
        assert traced.trace(account(), queued_after_seconds=0, traceparent=None) == ""
        assert traced.trace(account(), queued_after_seconds=0, traceparent=PARENT) == TRACE
    with opened(tmp_path, endpoint=received.endpoint, ratio=1) as traced:
        assert traced.trace(account(), queued_after_seconds=0, traceparent=NOT_SAMPLED) == ""
    assert len(received.spans) == 1


@pytest.mark.parametrize(
    "traceparent", ["", "00", "00-xyz-b7ad6b7169203331-01", f"00-{'0' * 32}-{'0' * 16}-01", "é" * 99]
)
def test_a_traceparent_that_is_none_begins_a_new_trace(tmp_path: Path, received: Received, traceparent: str) -> None:
    """As W3C has it."""
    with opened(tmp_path, endpoint=received.endpoint) as traced:
        assert len(traced.trace(account(), queued_after_seconds=0, traceparent=traceparent)) == 32
    assert received.spans[0].parent_span_id == b""


def test_callers_without_a_key_do_not_choose_what_is_traced(tmp_path: Path, received: Received) -> None:
    """Else anyone could make the server trace at will."""
    nobody = refused("missing_api_key", tenant="", key_id="", alias="", status=401)
    with opened(tmp_path, endpoint=received.endpoint, ratio=0) as traced:
        assert traced.trace(nobody, queued_after_seconds=0, traceparent=PARENT) == ""
    assert not received.spans


def test_headers_of_the_file_are_sent_and_never_said(tmp_path: Path, collector: tuple[str, Received]) -> None:
    """For a collector that wants a credential."""
    protocol, received = collector
    (tmp_path / "headers").write_text("# for the collector\nAuthorization: Bearer secret-7f3a\n\nx-scope: prod\n")
    changes = {"endpoint": received.endpoint, "protocol": protocol, "headers_file": "headers"}
    with opened(tmp_path, **changes) as traced:
        traced.trace(account(), queued_after_seconds=0, traceparent=None)
    assert received.headers[0]["authorization"] == "Bearer secret-7f3a"
    assert received.headers[0]["x-scope"] == "prod"
    (tmp_path / "headers").write_text("authorization secret-7f3a\n")
    with pytest.raises(StartupFault, match=r"headers:1: write") as raised:
        Tracing(settings(**changes), tmp_path, release="ab")
    assert "secret-7f3a" not in str(raised.value)


def test_a_headers_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """At the start, not in a lost span."""
    with pytest.raises(StartupFault, match=r"headers_file: .*FileNotFoundError"):
        Tracing(settings(endpoint="http://127.0.0.1:1", headers_file="none"), tmp_path, release="ab")


def test_http_endpoints_get_the_customary_path(tmp_path: Path, received: Received) -> None:
    """Unless they have one."""
    for endpoint in (received.endpoint, f"{received.endpoint}/", f"{received.endpoint}/own/path"):
        with opened(tmp_path, endpoint=endpoint) as traced:
            traced.trace(account(), queued_after_seconds=0, traceparent=None)
    assert received.paths == ["/v1/traces", "/v1/traces", "/own/path"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_collector_that_is_away_costs_spans_and_they_are_counted(tmp_path: Path, protocol: str) -> None:
    """Made spans are sent or counted as dropped; the end does not wait for the collector either."""
    traced = Tracing(settings(endpoint=f"http://127.0.0.1:{free_port()}", protocol=protocol), tmp_path, release="ab")
    for _ in range(10):
        traced.trace(account(), queued_after_seconds=0.1, traceparent=None)
    begin = time.monotonic()
    traced.close(0.2)
    assert time.monotonic() - begin < 60
    outbox = traced._outbox
    assert outbox is not None
    outbox._thread.join(20)
    assert traced.dropped_spans == 40


def test_a_collector_that_hangs_neither_blocks_nor_fills_the_memory(tmp_path: Path) -> None:
    """The queue is bounded; what does not fit is dropped and counted."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        traced = Tracing(settings(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"), tmp_path, release="ab")
        requests = tracing.QUEUE_SPANS // 2
        slowest = 0.0
        for _ in range(requests):
            begin = time.monotonic()
            traced.trace(account(), queued_after_seconds=0.1, traceparent=None)
            slowest = max(slowest, time.monotonic() - begin)
        outbox = traced._outbox
        assert outbox is not None
        held, dropped = len(outbox._spans), traced.dropped_spans
        traced.close(0.1)
        assert slowest < 30
        assert held <= tracing.QUEUE_SPANS
        # It takes a batch at a time, and waits for an answer to each.
        assert dropped >= 4 * requests - tracing.QUEUE_SPANS - 3 * tracing.BATCH_SPANS


def test_off_imports_nothing_and_gives_no_trace(tmp_path: Path) -> None:
    """One comparison a request is all that is left."""
    script = """
import sys
from pathlib import Path
from jubako.sections import TracingSettings
from jubako.settings import load
from jubako.telemetry.tracing import Tracing
from tests.ended_requests import account
off = Tracing(TracingSettings(endpoint=None, protocol="http", ratio=1, headers_file=None), Path(), release="ab")
assert off.trace(account(), queued_after_seconds=0.1, traceparent=f"00-{'a' * 32}-{'b' * 16}-01") == ""
assert off.dropped_spans == 0
off.close(1)
assert not [name for name in sys.modules if name.startswith(("opentelemetry", "grpc"))]
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert not [thread for thread in threading.enumerate() if thread.name == "spans"]


def test_tracing_is_off_as_it_comes_and_the_environment_turns_it_on() -> None:
    """An address with a password in it is refused: that belongs in the file of headers."""
    assert load(REPOSITORY, {}).server.telemetry.tracing.endpoint is None
    variable = "JUBAKO__TELEMETRY__TRACING__ENDPOINT"
    assert load(REPOSITORY, {variable: "http://c:4318"}).server.telemetry.tracing.endpoint == "http://c:4318"
    for wrong in ("collector:4317", "http://user:password@collector", "http://"):
        with pytest.raises(StartupFault, match=variable) as raised:
            load(REPOSITORY, {variable: wrong})
        assert "password" not in str(raised.value)
