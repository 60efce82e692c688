"""What is read of another benchmark's report: whole runs alone, and the server's time within the run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench import pages
from tests.bench.outside import guidellm, page
from tests.bench.outside.guidellm import BUSY, PACE, Load
from tests.bench.speed import measure
from tests.bench.speed.scenarios import FIRST, RATE, TOKEN_CPU

LOAD = Load("chat", "2 streams", 2, 4, 16, 100, usage_in_each_event=False)


class Watched:
    """A server that spends a second of processor time in each second of the day."""

    def between(self, begin: float, end: float) -> float:
        """All of it."""
        return end - begin


def report(**totals: int) -> dict[str, Any]:
    """As GuideLLM writes it, without what is not read."""
    middle = {"successful": {"percentiles": {"p50": 7.0}, "mean": 5.0, "total_sum": 400.0}}
    names = (
        "output_token_count",
        "output_tokens_per_second",
        "time_to_first_token_ms",
        "inter_token_latency_ms",
        "request_concurrency",
    )
    counted = {"successful": 4, "errored": 0, "incomplete": 0} | totals
    metrics = dict.fromkeys(names, middle) | {"request_totals": counted}
    return {"benchmarks": [{"start_time": 1000.0, "end_time": 1002.0, "metrics": metrics}]}


def test_the_server_s_time_is_that_of_the_run() -> None:
    """Two seconds for four hundred tokens."""
    figures = guidellm.figures(report(), LOAD, Watched())
    assert figures == {TOKEN_CPU: 5000.0, BUSY: 5.0, RATE: 5.0, FIRST: 7.0, PACE: 7.0}


@pytest.mark.parametrize("totals", [{"successful": 3}, {"errored": 1}, {"incomplete": 1}])
def test_a_run_that_is_not_whole_is_no_measurement(totals: dict[str, int]) -> None:
    """A server that fails fast would look cheap."""
    with pytest.raises(RuntimeError, match="not every request was answered"):
        guidellm.figures(report(**totals), LOAD, Watched())


def test_replies_of_another_length_are_no_measurement() -> None:
    """The two servers are to write the same."""
    with pytest.raises(RuntimeError, match="counts 400 tokens, not 404"):
        guidellm.figures(report(), Load("chat", "", 2, 4, 16, 101, usage_in_each_event=False), Watched())


def test_the_section_replaces_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    """What people wrote around it stays."""
    one = dict.fromkeys((TOKEN_CPU, BUSY, RATE, FIRST, PACE), 2.0)
    found = {
        "command": "make bench-outside",
        "date": "2026-11-30",
        "minutes": 5.0,
        "rounds": 1,
        "machine": {"cores": 2, "processor": "any", "memory_gib": 24},
        "versions": {"guidellm": "0.8.1"},
        "loads": {"chat": {"what": "2 streams", "summary": measure.summary([{"vllm": one, "jubako": one}])}},
    }
    place = tmp_path / "page.md"
    begin, end = pages.marks("outside")
    place.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    page.publish(found, place)
    text = place.read_text()
    assert text.startswith(f"before\n{begin}\n`make bench-outside`, 2026-11-30")
    assert text.endswith(f"{end}\nafter\n")
    assert "| 2 streams | CPU of the server a token, µs | 2 | 2 | 1.00 | 1.00-1.00 |" in text
    assert "old" not in text
    page.publish(found, place)
    assert place.read_text() == text


def test_a_page_without_a_place_for_it_is_told(tmp_path: Path) -> None:
    """And left as it is."""
    place = tmp_path / "page.md"
    place.write_text("nothing here\n")
    with pytest.raises(RuntimeError, match="no lines"):
        pages.replace(place, "outside", "anything")
    assert place.read_text() == "nothing here\n"
