"""`kill -9` under load: what was told to a caller is on record after it, once, and nothing is held by the dead.

`JUBAKO_TESTS_KILLS` says how often; `make prove-crash` does it thirty times.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from pathlib import Path

import pytest
import yaml

from tests import mixed_load
from tests.mixed_load import Sent
from tests.project import Project, Served, until
from tests.reckoning import Reckoning, assert_each_once, await_rest, by_tenant

KILLS = int(os.environ.get("JUBAKO_TESTS_KILLS", "2"))
SEED = int(os.environ.get("JUBAKO_TESTS_SEED", "9"))
KINDS = ("whole", "streamed", "choices", "prompts", "leaves", "late", "unknown field", "nowhere")
CALLERS = 16
LATEST_SECONDS = 6.0

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(240 + 90 * KILLS)]


@pytest.fixture
def project(tmp_path: Path, model_folder: Path) -> Project:
    """The demo release in a folder of its own, with budgets that count and small audit files."""
    project = Project.copy_to(tmp_path / "project")
    path = project.folder / "configuration" / "tenants.yaml"
    document = yaml.safe_load(path.read_text())
    document["policies"]["standard"]["tenant_budget"] = {"concurrency": 64, "tokens_per_day": 10**9}
    path.write_text(json.dumps(document))
    told = {"BUDGETS__LEASE_SECONDS": "1", "BOOKS__AUDIT_FILE_BYTES": "65536", "BOOKS__AUDIT_FILES": "1000"}
    project.environment |= {f"JUBAKO__{name}": value for name, value in told.items()}
    return project


def kill_under_load(server: Served, chance: random.Random, name: str) -> list[Sent]:
    """Ask until the server is dead, which happens at a random moment; what was asked."""
    requests = mixed_load.endless(chance, ["default"], name, KINDS)
    victim = server.worker().kill if chance.random() < 0.5 else server.process.kill
    timer = threading.Timer(chance.uniform(0.1, LATEST_SECONDS), victim)
    timer.start()
    key = {"default": server.key}
    sent = asyncio.run(mixed_load.ask_until_broken(server.url, key, requests, at_once=CALLERS))
    timer.join()
    server.wait_end()
    until(lambda: not server.processes(), "all its processes ended", 20)
    return sent


def assert_whole(server: Served, books: Reckoning, sent: list[Sent]) -> None:
    """Of everything that was ever asked: each end once on record, the books level, nothing held."""
    await_rest(server)
    lines = books.audit
    assert {line["request_id"] for line in lines} <= {one.request_id for one in sent}
    assert_each_once(sent, lines)
    books.assert_level()
    until(lambda: books.held() == 0, "the reservations of the dead are free")
    assert by_tenant(books.rows()) == by_tenant(lines)


def test_what_a_caller_was_told_survives_a_kill_once(project: Project) -> None:
    """Of the worker or of the arbiter, at any moment; also over many kills of one and the same books."""
    chance = random.Random(SEED)
    books = Reckoning(project)
    sent: list[Sent] = []
    for number in range(KILLS):
        with project.serving() as server:
            server.wait_ready()
            assert_whole(server, books, sent)
            sent += kill_under_load(server, chance, f"kill-{number}")
    with project.serving() as server:
        server.wait_ready()
        assert_whole(server, books, sent)
        server.terminate()
        assert server.wait_end() == 0
    books.assert_level()
    told = sum(one.ended for one in sent)
    broken = sum(one.end == "broken" for one in sent)
    print(f"{KILLS} kills: {len(sent)} requests, {told} with an end, {broken} cut, {len(books.audit)} on record")  # noqa: T201
    assert told > 3 * KILLS
