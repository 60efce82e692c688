"""What was written down of requests: audit, ledger and metrics of one server, read from outside it.

It knows the books' files and tables and the metrics' text; it starts nothing and asks for no answer of the model.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from jubako.books import database, journal, schema
from tests.mixed_load import Sent
from tests.project import Project, Served, until

TOKENS = ("prompt_tokens", "cached_tokens", "generated_tokens")
REST = (
    "jubako_requests_in_flight",
    "jubako_running_sequences",
    "jubako_queue_tokens",
    "jubako_request_body_held_bytes",
    "jubako_ledger_pending_records",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
)
"""Metrics that are zero when nothing is under way and all of it is booked."""
Line = dict[str, Any]


@dataclass(frozen=True)
class Reckoning:
    """The books of the project's server. `url` and `password_file` are the ledger's, if it is not the SQLite file."""

    project: Project
    url: str | None = None
    password_file: Path | None = None

    @property
    def folder(self) -> Path:
        """Everything that the server keeps."""
        return self.project.folder / ".jubako"

    @property
    def audit(self) -> list[Line]:
        """Every whole line, in order."""
        found: list[Line] = []
        for one in journal.files(self.folder / "books" / "audit"):
            found += [json.loads(line) for line in one.path.read_bytes().split(b"\n")[:-1]]
        return found

    def rows(self, table: sa.Table = schema.usage) -> list[Line]:
        """Every row of one of the ledger's tables."""
        address = database.url(self.url, self.folder / "books" / "ledger.sqlite")
        engine = database.engine(address, self.password_file, read_only=True)
        try:
            with engine.begin() as connection:
                return [dict(row) for row in connection.execute(sa.select(table)).mappings()]
        finally:
            engine.dispose()

    def held(self) -> int:
        """Reservations of budgets that nobody has ended."""
        address = f"{(self.folder / 'budgets.sqlite').as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=20, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")  # once the server has written what it did
            (count,) = connection.execute("SELECT count(*) FROM reservations WHERE reaped_at IS NULL").fetchone()
        return int(count)

    def verify(self) -> str:
        """What `jubako audit verify` says of the whole chain; fails if it finds a fault."""
        done = self.project.jubako("audit", "verify")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def usage(self, *options: str) -> list[dict[str, Any]]:
        """What `jubako usage` says."""
        done = self.project.jubako("usage", "--format", "json", *options)
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def assert_level(self) -> None:
        """Audit and ledger say the same of the same requests, row by row and in sums, and the chain is whole."""
        lines, rows = self.audit, self.rows()
        keys = [(line["journal"], line["sequence"]) for line in lines]
        assert len(set(keys)) == len(keys)
        booked = {(row["journal"], row["sequence"]): row for row in rows}
        assert sorted(booked) == sorted(keys)
        for line in lines:
            row = booked[line["journal"], line["sequence"]]
            assert row["ended_at"] == line["time"]
            shared = row.keys() & line.keys()
            assert {name: row[name] for name in shared} == {name: line[name] for name in shared}
        assert f"{len(lines)} lines" in self.verify()
        summed = {row["tenant"]: {name: row[name] for name in TOKENS} for row in self.usage("--by", "tenant")}
        assert summed == by_tenant(lines)


def by_tenant(lines: Iterable[Line]) -> dict[str, dict[str, int]]:
    """Tokens by tenant."""
    found: dict[str, Counter[str]] = {}
    for line in lines:
        found.setdefault(line["tenant"], Counter(dict.fromkeys(TOKENS, 0))).update(
            {name: line[name] for name in TOKENS}
        )
    return {tenant: {name: sums[name] for name in TOKENS} for tenant, sums in found.items()}


def total(lines: Iterable[Line], name: str) -> int:
    """The sum of one number."""
    return sum(int(line[name]) for line in lines)


def samples(server: Served, accept: str = "") -> dict[str, float]:
    """Every sample of a scrape by its name and labels."""
    headers = {"authorization": f"Bearer {server.operator_key}", "accept": accept}
    reply = httpx.get(f"{server.url}/metrics", headers=headers, timeout=120)
    assert reply.status_code == httpx.codes.OK, reply.text
    found = {}
    for line in reply.text.splitlines():
        if match := re.match(r"([a-zA-Z_:][^ {]*(?:\{.*?\})?) (\S+)", line):
            found[match[1]] = float(match[2])
    return found


@dataclass
class Movement:
    """What metrics moved by since this was made."""

    server: Served
    before: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = samples(self.server)

    def since(self) -> Moved:
        """Up to now."""
        now = samples(self.server)
        return Moved({name: value - self.before.get(name, 0.0) for name, value in now.items()})


class Moved(dict[str, float]):
    """Differences of samples."""

    def of(self, prefix: str) -> float:
        """Of all samples whose name and labels begin so."""
        return sum(value for name, value in self.items() if name.startswith(prefix))


def await_rest(server: Served, seconds: float = 60) -> None:
    """Wait until nothing is under way and everything is booked."""

    def rests() -> bool:
        found = samples(server)
        return all(value == 0 for name, value in found.items() if name.partition("{")[0] in REST)

    until(rests, "the server is at rest and its books are level", seconds)


def vllm_prompt_tokens(lines: list[Line], sent: dict[str, Sent]) -> int:
    """What vLLM counts: a prompt once its first token is there, and once for each choice."""
    return sum(
        line["prompt_tokens"] * sent[line["request_id"]].choices for line in lines if line["first_token_seconds"]
    )


def assert_each_once(requests: list[Sent], lines: list[Line]) -> None:
    """Who has an end is on record once, with that end; nobody is twice; who left before he was heard may be absent."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["request_id"], []).append(line)
    for one in requests:
        mine = found.get(one.request_id, [])
        assert len(mine) <= 1, one.request_id
        if not one.ended:
            continue
        assert len(mine) == 1, (one.request_id, one.kind, one.end)
        (line,) = mine
        assert line["status"] == one.status, (one.request_id, one.kind)
        if one.end == "error" or one.status != httpx.codes.OK:
            assert line["outcome"] in {"refused", "deadline", "failed"}
            assert line["code"] == json.loads(one.text.strip().splitlines()[-1].removeprefix("data: "))["error"]["code"]
        else:
            assert line["outcome"] in {"completed", "length"}
            assert one.usage is not None
            counted = {"prompt_tokens": line["prompt_tokens"], "completion_tokens": line["generated_tokens"]}
            assert counted == {name: one.usage[name] for name in counted}, (one.request_id, one.kind)
