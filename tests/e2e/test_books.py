"""The books of a real server: everything counted once, by all who count, and nothing of what was said in any of them.

One server for all: its ledger is a real PostgreSQL where there is one, its spans go to a real collector, its logs are
at debug. The last test is the death of its engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from jubako.books import schema
from tests import mixed_load, otlp_receiver, postgres
from tests.canaries import CANARY, Canaries
from tests.contract.corpus import BASE, CHAT, UNHURRIED, says
from tests.engine_metrics import await_busy
from tests.otlp_receiver import Received, attributes
from tests.postgres import Postgres
from tests.project import REPOSITORY, Project, Served, until
from tests.prometheus import RULES, scraping
from tests.reckoning import (
    Movement,
    Reckoning,
    assert_each_once,
    await_rest,
    by_tenant,
    samples,
    total,
    vllm_prompt_tokens,
)
from tests.tenants import Keys

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

TENANTS = ("red", "blue", "base-only", "hasty", "three-a-minute", "one-at-a-time", "impatient")
SEED = 4
REQUESTS = 220
AT_ONCE = 48
EXECUTOR_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Of asyncio's own, which starts them one by one as it needs them and keeps them: they are no leak."""


@dataclass(frozen=True)
class Booked:
    """The server, and everything that it tells."""

    server: Served
    books: Reckoning
    keys: Keys
    collector: Received
    database: Postgres | None

    def key_of_each(self) -> dict[str, str]:
        """Of each tenant of the load."""
        return {tenant: self.keys.of(tenant) for tenant in TENANTS}


@pytest.fixture(scope="module")
def booked(tmp_path_factory: pytest.TempPathFactory, adapted_project: Project) -> Iterator[Booked]:
    """A server of its own, with the release of the one that most tests share."""
    folder = tmp_path_factory.mktemp("booked")
    shutil.copy(REPOSITORY / "service.py", folder)
    shutil.copytree(adapted_project.folder / "configuration", folder / "configuration")
    project = Project(folder, dict(adapted_project.environment))
    with ExitStack() as stack:
        collector = stack.enter_context(otlp_receiver.over_http())
        told = {"TELEMETRY__TRACING__ENDPOINT": collector.endpoint, "TELEMETRY__LOGS__LEVEL": "debug"}
        told |= {"BOOKS__AUDIT_STANDARD_OUTPUT": "true", "SURFACES__METRICS": "open"}
        database = stack.enter_context(postgres.running()) if postgres.binaries() is not None else None
        books = Reckoning(project)
        if database is not None:
            books = Reckoning(project, database.url, database.password_file)
            told |= {"BOOKS__LEDGER_URL": database.url, "BOOKS__LEDGER_PASSWORD_FILE": str(database.password_file)}
        project.environment |= {f"JUBAKO__{name}": value for name, value in told.items()}
        project.environment |= {"VLLM_LOGGING_LEVEL": "DEBUG", **UNHURRIED}
        server = stack.enter_context(project.serving()).wait_ready()
        yield Booked(server, books, Keys(project, server), collector, database)


def test_a_mixed_load_is_counted_once_by_all_who_count(booked: Booked) -> None:
    """Audit, ledger, metrics and vLLM's own counters agree; nothing is held at the end.

    Under way the ledger's database is stopped and started again, where there is one: no request minds.
    """
    server, books, keys = booked.server, booked.books, booked.key_of_each()
    await_rest(server)
    requests = mixed_load.make(random.Random(SEED), TENANTS, REQUESTS, "mixed")
    threads = psutil.Process(server.worker().pid).num_threads()
    before, first = Movement(server), len(books.audit)
    behind: list[float] = []

    def arrived(count: int) -> None:
        if booked.database is None:
            return
        if count == REQUESTS // 4:
            booked.database.stop()
        elif count == 3 * REQUESTS // 4:
            found = samples(server)
            behind[:] = found["jubako_ledger_pending_records"], found["jubako_ledger_lag_seconds"]
            assert found["jubako_audit_healthy"] == 1
            booked.database.start()

    asyncio.run(mixed_load.ask_all(server.url, keys, requests, at_once=AT_ONCE, arrived=arrived))
    await_rest(server)
    lines, moved = books.audit[first:], before.since()
    # How many of the load's requests left before they were on record, and are not pending, is chance.
    assert all(one > 0 for one in behind)
    assert len(behind) == (0 if booked.database is None else 2)
    sent = {one.request_id: one for one in requests}
    assert {line["request_id"] for line in lines} <= sent.keys()
    assert_each_once(requests, lines)
    assert {line["outcome"] for line in lines} == {"completed", "length", "cancelled", "deadline", "refused"}
    assert not any(one.end == "broken" for one in requests)

    books.assert_level()
    assert moved.of("jubako_requests_total{") == len(lines)
    for outcome in {line["outcome"] for line in lines}:
        counted = sum(v for k, v in moved.items() if k.startswith("jubako_requests_total{") and f'"{outcome}"' in k)
        assert counted == sum(line["outcome"] == outcome for line in lines), outcome
    for kind in ("prompt", "cached", "generated"):
        assert moved[f'jubako_tokens_total{{kind="{kind}"}}'] == total(lines, f"{kind}_tokens")
    assert moved.of("vllm:generation_tokens_total{") == total(lines, "generated_tokens")
    assert moved.of("vllm:prompt_tokens_total{") == vllm_prompt_tokens(lines, sent)
    assert total(lines, "cached_tokens") > 0
    assert moved["jubako_audit_unrecorded_total"] == 0

    assert books.held() == 0
    worker = psutil.Process(server.worker().pid)
    until(
        lambda: not [one for one in worker.net_connections() if one.status == psutil.CONN_CLOSE_WAIT], "sockets close"
    )
    assert worker.num_threads() <= threads + EXECUTOR_THREADS + 2


def test_a_ledger_has_the_days_of_its_rows(booked: Booked) -> None:
    """The daily sums are those of the rows; what `jubako usage` shows is both."""
    await_rest(booked.server)
    daily = booked.books.rows(schema.usage_daily)
    rows = booked.books.rows()
    assert sum(int(one["requests"]) for one in daily) == len(rows)
    assert by_tenant(rows) == {
        tenant: {name: sum(int(one[name]) for one in daily if one["tenant"] == tenant) for name in sums}
        for tenant, sums in by_tenant(rows).items()
    }


def ask(booked: Booked, request_id: str, **headers: str) -> httpx.Response:
    """A short chat of the tenant `red`."""
    headers |= {"authorization": f"Bearer {booked.keys.of('red')}", "x-request-id": request_id}
    body = {"model": BASE, "messages": says("Hello"), "max_tokens": 3, "ignore_eos": True}
    return httpx.post(f"{booked.server.url}{CHAT}", json=body, headers=headers, timeout=120)


def test_a_collector_gets_the_spans_of_a_request(booked: Booked) -> None:
    """In the caller's trace, with its steps, and the id that log and audit know it by."""
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert ask(booked, "traced", traceparent=f"00-{trace_id}-00f067aa0ba902b7-01").status_code == httpx.codes.OK
    mine: list[Any] = []

    def came() -> bool:
        mine[:] = [span for span in booked.collector.spans if span.trace_id.hex() == trace_id]
        return len(mine) >= 4

    until(came, "the spans came", 20)
    named = {span.name: span for span in mine}
    assert set(named) == {f"chat {BASE}", "queue", "prefill", "decode"}
    root = named[f"chat {BASE}"]
    assert root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert {named[step].parent_span_id for step in ("queue", "prefill", "decode")} == {root.span_id}
    assert named["queue"].end_time_unix_nano == named["prefill"].start_time_unix_nano
    assert named["prefill"].end_time_unix_nano == named["decode"].start_time_unix_nano
    said = attributes(root)
    assert (said["jubako.request.id"], said["jubako.tenant"], said["jubako.outcome"]) == ("traced", "red", "length")
    assert (said["gen_ai.request.model"], said["gen_ai.usage.output_tokens"]) == (BASE, 3)
    (line,) = [json.loads(one) for one in booked.server.log.splitlines() if '"message":"request=traced ' in one]
    assert (line["trace_id"], line["request_id"], line["generated_tokens"]) == (trace_id, "traced", 3)


def test_a_prometheus_scrapes_the_server(booked: Booked, tmp_path: Path) -> None:
    """Every rule can be evaluated, ours and vLLM's series are there, and a slow request leads to its trace."""
    port = urlsplit(booked.server.url).port
    assert port is not None
    rules = REPOSITORY / "configuration" / "deploy" / RULES
    with scraping(port, rules, tmp_path) as prometheus:
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        assert ask(booked, "scraped", traceparent=f"00-{trace_id}-b7ad6b7169203331-01").status_code == httpx.codes.OK
        counted = samples(booked.server)['jubako_tokens_total{kind="generated"}']

        def scraped() -> bool:
            found = prometheus.query('jubako_tokens_total{kind="generated"}')
            return bool(found) and float(found[0]["value"][1]) == counted

        until(scraped, "the scrape saw the request", 20)
        assert [one["value"][1] for one in prometheus.query("up")] == ["1"]
        assert prometheus.query("vllm:generation_tokens_total")
        assert prometheus.query("process_resident_memory_bytes")
        unhealthy = [rule for rule in prometheus.rules() if rule["health"] != "ok"]
        assert not unhealthy
        found = prometheus.get("query_exemplars", query="jubako_request_duration_seconds_bucket", start=0, end=2**31)
        traces = {one["labels"]["trace_id"] for series in found for one in series["exemplars"]}
        assert trace_id in traces


def test_nothing_that_was_said_is_anywhere(booked: Booked) -> None:
    """Not in a log, a metric, a span, the audit, a database or an error that somebody else gets."""
    server = booked.server
    dropped = samples(server)["jubako_spans_dropped_total"]
    with Canaries(server.url, booked.keys.of("red")) as canaries:
        canaries.sing()
        others = canaries.answers_of_others()
    assert canaries.successes > 10
    assert canaries.refusals > 10
    await_rest(server)
    # Spans come in the order in which their requests ended: when this one's are there, all are.
    last = "6f1c2d3e4b5a69788796a5b4c3d2e1f0"
    assert ask(booked, "silence-last", traceparent=f"00-{last}-00f067aa0ba902b7-01").status_code == httpx.codes.OK
    until(lambda: any(span.trace_id.hex() == last for span in booked.collector.spans), "the spans came", 60)
    assert samples(server)["jubako_spans_dropped_total"] == dropped
    traced = {str(attributes(span).get("jubako.request.id")) for span in booked.collector.spans}
    assert sum(one.startswith("silence-") for one in traced) > canaries.successes
    told: dict[str, bytes] = {
        "log": server.log_file.read_bytes(),
        "metrics": httpx.get(f"{server.url}/metrics", timeout=120).content,
        "spans": b"".join(request.SerializeToString() for request in booked.collector.requests),
        "rows": repr([booked.books.rows(table) for table in schema.metadata.sorted_tables]).encode(),
        "answers of others": others,
    }
    told |= {str(path): path.read_bytes() for path in booked.books.folder.rglob("*") if path.is_file()}
    assert b"silence-" in told["log"], "the requests are in the log, by their ids"
    for where, what in told.items():
        at = what.lower().find(CANARY.encode())
        assert at < 0, f"{where}: {what[max(at - 300, 0) : at + 100]!r}"


def test_the_death_of_the_engine_loses_nothing(booked: Booked) -> None:
    """Every caller gets an end, each is on record once as failed, with what the engine had done; the process ends."""
    server, books, keys = booked.server, booked.books, booked.key_of_each()
    await_rest(server)
    first = len(books.audit)
    requests = [
        one for one in mixed_load.make(random.Random(SEED + 1), ("red", "blue"), 40, "dying") if one.path == CHAT
    ]
    for one in requests:
        one.leaves_after_seconds = None
        one.body = one.body | (mixed_load.ENDLESS if "messages" in one.body else {})
    engine = server.engine_core()

    async def die() -> None:
        asking = asyncio.create_task(
            mixed_load.ask_all(server.url, keys, requests, at_once=len(requests), arrived=lambda _: None)
        )
        await asyncio.to_thread(await_busy, server, 4)
        engine.kill()
        await asking

    asyncio.run(die())
    assert server.wait_end() == 1
    lines = books.audit[first:]
    assert_each_once(requests, lines)
    failed = [line for line in lines if line["outcome"] == "failed"]
    assert {line["code"] for line in failed} == {"engine_unavailable"}
    assert any(line["generated_tokens"] for line in failed)
    assert not [one.request_id for one in requests if not one.ended]
    books.assert_level()
    assert books.held() == 0
    until(lambda: not server.processes(), "all its processes ended", 20)
    said = mixed_load.SHARED[:20].encode()
    for path in (server.log_file, *(path for path in books.folder.rglob("*") if path.is_file())):
        assert said not in path.read_bytes(), path
