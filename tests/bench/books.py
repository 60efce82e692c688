"""What the books cost in CPU per streamed token: `make bench-books`.

One engine with one layer, so that the machine is left to what is around it, and three pipelines: `off` tells nothing,
`books` has audit, ledger, metrics and the log's line, as a server without a collector; `all` has also spans, four a
request, sent to a collector. The same streams go through each in turn. CPU is the serving process', all threads,
without the engine's and the callers'.
A cycle has two windows of each, in one order and then in the other, and its own ratios. Fails when the median ratio of
`all` is above 1.05.
"""

# ruff: noqa: T201 - a benchmark talks on standard output

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from jubako import settings
from jubako.accounts import Accounts, Entry
from jubako.boundary.application import Application
from jubako.boundary.bodies import Bodies
from jubako.boundary.exchange import Exchange
from jubako.gate.admission.admission import Admission
from jubako.life import Life
from jubako.pipeline import Pipeline
from jubako.sections import AdmissionSettings, StreamSettings, TracingSettings
from jubako.vocabulary import Outcome, ServedRelease, Step
from tests.bench.command import start
from tests.bench.projects import demo_model
from tests.boundary_limits import limited
from tests.caller import BODIES, KEY, NoBudgets, OneKey, policy
from tests.one_layer import write_one_layer
from tests.project import REPOSITORY, free_port

STREAMS = 64
LIMIT = 1.05
SETTLED_SECONDS = 0.5
"""Between two looks, which cost something too."""
ALIAS = "one-layer"
DIGEST = "d" * 64
STREAM = StreamSettings(keep_alive_seconds=10, stalled_reader_seconds=30)
ADMISSION = AdmissionSettings(
    time_per_output_token_seconds=60, queue_requests=1000, queue_tokens=10**8, ageing_seconds=5
)


class Nowhere(Accounts):
    """Where nothing is told."""

    def require_healthy(self) -> None:
        """There is nothing that could be unwell."""

    def tell(self, entry: Entry, outcome: Outcome, code: str, status: int, *, sent_status: int = 0) -> None:
        """Nothing."""
        entry.told = True


def open_books(folder: Path, collector: str | None) -> Accounts:
    """The real ones, as a server has them."""
    from jubako.books.books import Books
    from jubako.telemetry.metrics import REGISTRY, Metrics
    from jubako.telemetry.tracing import Tracing

    own = settings.load(REPOSITORY).server
    return Accounts(
        Books.open(own.books, folder, DIGEST),
        Metrics(REGISTRY, [ALIAS], release="bench/1", digest=DIGEST),
        Tracing(tracing(collector), folder, release=DIGEST),
        DIGEST,
        frozenset(),
    )


def tracing(collector: str | None) -> TracingSettings:
    """Every request is traced, if there is a collector."""
    return TracingSettings(endpoint=collector, protocol="http", ratio=1, headers_file=None)


async def start_engine(folder: Path) -> Any:
    """The one-layer engine, with room for every stream."""
    loaded = settings.load(REPOSITORY)
    os.environ.update({name: str(value) for name, value in loaded.profile.environment.items()})
    from jubako.engine.vllm.adapter import VllmEngine

    model = write_one_layer(demo_model()[0], folder)
    options = loaded.engine_options | {"max_num_seqs": STREAMS}
    engine = VllmEngine(ServedRelease(DIGEST, str(model), (ALIAS,), "bfloat16"), options, loaded.server.grammar, 5)
    await engine.start()
    return engine


@asynccontextmanager
async def serving(pipelines: dict[str, Pipeline], chosen: list[str]) -> AsyncIterator[str]:
    """The pipelines over HTTP, the chosen one answering; the address."""

    async def handle(exchange: Exchange) -> None:
        await pipelines[chosen[0]](exchange)

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Application(handle), log_config=None, lifespan="off", http="httptools"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await task


async def ask(address: str, tokens: int, requests: int) -> int:
    """One caller's streams, one after the other; how many tokens came. Raw, so that it takes little of the machine."""
    host, _, port = address.partition(":")
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True, "stream": True}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "host: bench", f"authorization: Bearer {KEY}"]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    reader, writer = await asyncio.open_connection(host, int(port))
    came = 0
    for _ in range(requests):
        writer.write("\r\n".join(lines).encode() + body)
        end = b""
        while b"[DONE]" not in end:
            part = await reader.read(65536)
            if not part or b'"error"' in part:
                raise RuntimeError(f"a stream did not end as it must: {part[-300:]!r}")
            came += part.count(b'data: {"id"')
            end = (end + part)[-200:]
    writer.close()
    return came


async def callers(address: str, tokens: int, requests: int) -> int:
    """All streams of one window; how many tokens came."""
    return sum(await asyncio.gather(*(ask(address, tokens, requests) for _ in range(STREAMS))))


async def window(address: str, tokens: int, requests: int, told_to: Accounts) -> float:
    """Microseconds of CPU per token of one window of streams, whose callers are a process of their own.

    It lasts until the ledger and the collector have what was told in it: the next one is not to pay for it.
    """
    command = [sys.executable, "-m", "tests.bench.books", "callers", address, str(tokens), str(requests)]
    before = time.process_time()
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    told, _ = await child.communicate()
    outbox: Any = told_to.tracing._outbox  # it would send in some seconds
    outbox._wake.set()
    await asyncio.sleep(SETTLED_SECONDS)
    while told_to.books.lag or outbox._spans:
        await asyncio.sleep(SETTLED_SECONDS)
    spent = time.process_time() - before
    if child.returncode != 0:
        raise RuntimeError("the callers failed")
    return spent / int(told) * 1e6


async def measure(folder: Path, collector: str, arguments: argparse.Namespace) -> bool:
    """Alternate, print, judge."""
    from jubako.telemetry import logs
    from jubako.telemetry.tracing import Tracing

    engine = await start_engine(folder)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    logs.configure(settings.load(REPOSITORY).server.telemetry.logs.model_copy(update={"format": "json"}))
    nothing: Any = None
    traced = open_books(folder, collector)
    untraced = replace(traced, tracing=Tracing(tracing(None), folder, release=DIGEST))
    nowhere = Nowhere(nothing, nothing, nothing, DIGEST, frozenset())
    told: dict[str, Accounts] = {"off": nowhere, "books": untraced, "all": traced}
    life, admission = Life(), Admission(ADMISSION, ceiling=STREAMS)
    life.become_ready()
    for running in (2, 4, 8, 16, 32, 64):
        for _ in range(5):
            admission.on_step(Step(time.monotonic(), 0.01, running, 0, running))
    key: Any = OneKey(policy(limited(), deadline_seconds=600, queue_seconds=600))
    pipelines = {name: Pipeline(key, life, NoBudgets(), where, STREAM, Bodies(BODIES)) for name, where in told.items()}
    for one in pipelines.values():
        one.serve(engine, admission)
    chosen = ["off"]
    cycles: list[dict[str, float]] = []
    async with serving(pipelines, chosen) as address:
        for number in range(arguments.windows + 1):
            cycle = dict.fromkeys(told, 0.0)
            for name in (*told, *reversed(told)):  # a machine that becomes slower does so for all alike
                chosen[0] = name
                cycle[name] += await window(address, arguments.tokens, arguments.requests, traced) / 2
            if number:  # the first of each warms up
                cycles.append(cycle)
                print("  ".join(f"{name} {spent:5.1f}" for name, spent in cycle.items()), "us CPU a token", flush=True)
    await traced.books.close()
    traced.tracing.close(5)
    await engine.close(5)
    print(f"{STREAMS} streams of {arguments.tokens} tokens; medians of {len(cycles)} cycles")
    ratios = {}
    for name in told:
        found = [cycle[name] / cycle["off"] for cycle in cycles]
        ratios[name] = statistics.median(found)
        median = statistics.median(cycle[name] for cycle in cycles)
        print(f"{name:>6} {median:8.1f} us, ratio {ratios[name]:.3f} ({min(found):.3f} to {max(found):.3f})")
    print(f"ledger behind by {traced.books.lag} records, spans dropped {traced.tracing.dropped_spans}")
    return ratios["all"] <= LIMIT and traced.books.lag == 0


def main(given: list[str]) -> int:
    """Run as the server, or as its callers, or as the collector of its spans; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["run", "callers", "collector"], nargs="?", default="run")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    parser.add_argument("--requests", type=int, default=2, help="one after the other, of each of 64 callers, a window")
    parser.add_argument("--windows", type=int, default=7, help="cycles, of two windows of each kind")
    arguments = parser.parse_args(given)
    if arguments.role == "callers":
        address, tokens, requests = arguments.rest
        print(asyncio.run(callers(address, int(tokens), int(requests))))
        return 0
    if arguments.role == "collector":
        collect(int(arguments.rest[0]))
        return 0
    port = free_port()
    collector = subprocess.Popen([sys.executable, "-m", "tests.bench.books", "collector", str(port)])
    try:
        with tempfile.TemporaryDirectory() as folder:
            within = asyncio.run(measure(Path(folder), f"http://127.0.0.1:{port}", arguments))
    finally:
        collector.terminate()
        collector.wait()
    return int(not within)


def collect(port: int) -> None:
    """Take spans and forget them."""
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    start(main)
