"""The metrics of a real server: ours count what was asked, and vLLM's are there under the names that are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from jubako.telemetry.metrics import FAMILIES
from tests.contract.corpus import BASE, CHAT, COMPLETIONS, says
from tests.project import REPOSITORY
from tests.reckoning import Movement, samples

if TYPE_CHECKING:
    from tests.project import Served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

COMPLETED = f'jubako_requests_total{{alias="{BASE}",outcome="length",route="chat_completions"}}'


def test_names_of_the_rules_and_the_dashboard_are_on_the_page(jubako_server: Served) -> None:
    """vLLM's as they are listed, all of ours, and those of the process."""
    names = {name.partition("{")[0] for name in samples(jubako_server)}
    listed = (REPOSITORY / "tests" / "unit" / "vllm_metric_names.txt").read_text().splitlines()
    asked = {line.split()[0] for line in listed if line and not line.startswith("#")}
    assert asked <= names
    for family in FAMILIES.values():
        assert (f"{family.name}_bucket" if family.kind == "histogram" else family.name) in names
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "python_gc_collections_total"} <= names


def test_a_request_moves_ours_and_vllm_s_alike(jubako_server: Served) -> None:
    """By the same tokens; a refusal moves neither's."""
    before = samples(jubako_server)
    headers = {"authorization": f"Bearer {jubako_server.key}"}
    body = {"model": BASE, "messages": says("Hello"), "max_tokens": 3, "temperature": 0}
    reply = httpx.post(f"{jubako_server.url}{CHAT}", json=body, headers=headers, timeout=120)
    assert reply.status_code == httpx.codes.OK, reply.text
    usage = reply.json()["usage"]
    httpx.post(f"{jubako_server.url}{CHAT}", json=body | {"n": -1}, headers=headers, timeout=120)
    after = samples(jubako_server)

    def moved(name: str) -> float:
        return sum(value - before.get(key, 0) for key, value in after.items() if key.startswith(name))

    assert moved('jubako_tokens_total{kind="prompt"}') == usage["prompt_tokens"] == moved("vllm:prompt_tokens_total{")
    assert moved('jubako_tokens_total{kind="generated"}') == usage["completion_tokens"]
    assert moved("vllm:generation_tokens_total{") == usage["completion_tokens"]
    assert moved(COMPLETED) == (reply.json()["choices"][0]["finish_reason"] == "length")
    assert moved("jubako_time_to_first_token_seconds_count") == 1
    assert moved("jubako_refusals_total{") == 1


def test_the_pace_of_choices_is_that_of_each(jubako_server: Served) -> None:
    """As vLLM's own, which counts every choice as a request: three side by side are as fast as each of them."""
    before = Movement(jubako_server)
    headers = {"authorization": f"Bearer {jubako_server.key}"}
    body = {"model": BASE, "prompt": "Once", "n": 3, "temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    reply = httpx.post(f"{jubako_server.url}{COMPLETIONS}", json=body, headers=headers, timeout=120)
    assert reply.status_code == httpx.codes.OK, reply.text
    moved = before.since()
    ours, theirs = "jubako_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"
    assert (moved.of(f"{ours}_count"), moved.of(f"{theirs}_count{{")) == (1, 3)
    assert moved.of(f"{ours}_sum") == pytest.approx(moved.of(f"{theirs}_sum{{") / 3)
