"""A real server whose standard error nobody reads: a container runtime that stalls, a stopped terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.project import Project, Served, until
from tests.reckoning import samples
from tests.unread_pipe import Reader, fill

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

REQUESTS = 20


class Unread:
    """The server, and the end of the pipe that is not read."""

    def __init__(self, served: Served, reading: int) -> None:
        self.served = served
        self.reader = Reader(reading)

    def lines(self) -> list[dict[str, Any]]:
        """Every line of our format that was read so far."""
        return [json.loads(one) for one in self.reader.lines if one.startswith("{") and one.endswith("\n")]

    def ended(self) -> list[str]:
        """The requests whose line was read, in the order of their lines."""
        return [line["request_id"] for line in self.lines() if line["logger"] == "jubako.requests"]


@pytest.fixture
def unread(tmp_path: Path, model_folder: Path) -> Iterator[Unread]:
    """Nobody has read since the start, and the pipe has no room left."""
    logs = {"JUBAKO__TELEMETRY__LOGS__LEVEL": "debug", "JUBAKO__TELEMETRY__LOGS__FORMAT": "json"}
    project = Project.copy_to(tmp_path / "project", logs)
    reading, writing = os.pipe()
    try:
        with project.serving(stderr=writing) as served:
            served.wait_ready()
            fill(writing)
            os.close(writing)
            writing = -1
            yield Unread(served, reading)
    finally:
        for number in (reading, writing):
            if number >= 0:
                os.close(number)


def _ask(served: Served, request_id: str, *, stream: bool) -> str:
    headers = {"authorization": f"Bearer {served.key}", "x-request-id": request_id}
    body = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 4, "stream": stream}
    reply = httpx.post(f"{served.url}/v1/completions", headers=headers, json=body, timeout=120)
    assert reply.status_code == httpx.codes.OK, reply.text
    return reply.text


def test_a_log_that_nobody_reads_stops_nothing(unread: Unread) -> None:
    """Requests, streams and probes are answered; once somebody reads, every request has its line, in order."""
    served = unread.served
    asked = [f"unread-{number}" for number in range(REQUESTS)]
    for number, request_id in enumerate(asked):
        text = _ask(served, request_id, stream=bool(number % 2))
        assert ("data: [DONE]" in text) == bool(number % 2)
        for probe in ("/livez", "/readyz"):
            assert httpx.get(f"{served.url}{probe}", timeout=60).status_code == httpx.codes.OK
    assert samples(served)["jubako_log_lines_dropped_total"] == 0
    unread.reader.start()
    until(lambda: unread.ended()[-1:] == asked[-1:], "the last request's line was read")
    assert [one for one in unread.ended() if one.startswith("unread-")] == asked
    _ask(served, "read-again", stream=False)
    until(lambda: unread.ended()[-1] == "read-again", "the next line was read")


def test_a_server_whose_log_nobody_reads_ends_when_it_is_told(unread: Unread) -> None:
    """With status 0. Python's resource tracker may have a last word of its own, which waits for a reader."""
    _ask(unread.served, "last", stream=True)
    unread.served.terminate()
    assert unread.served.wait_end(120) == 0
    unread.reader.start()
    unread.served.assert_nothing_left()
