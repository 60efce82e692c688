"""Jubako answers as vLLM's own server does, but for the differences that are declared."""

from __future__ import annotations

import pytest

from tests.contract.compare import ends_as_a_stream_must
from tests.contract.corpus import Request
from tests.contract.differences import DECLARED, Declared
from tests.contract.faults import REQUESTS
from tests.contract.parity import Parity

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MOST_STREAMS_CUT_ELSEWHERE = 4


@pytest.mark.parametrize("asked", [pytest.param(request, id=request.name) for request in REQUESTS])
def test_jubako_says_what_vllm_says(parity: Parity, asked: Request) -> None:
    """Status, headers, document and events are as promised."""
    found = parity.differences(asked)
    assert not found, "\n".join(["vLLM, as declared, != Jubako:", *map(str, found)])


@pytest.mark.parametrize("declared", [pytest.param(one, id=one.name) for one in DECLARED])
def test_declared_difference_is_met(parity: Parity, declared: Declared) -> None:
    """Left out, it is missed: by every request it names, or by any at all if it names none."""
    if parity.with_itself:
        pytest.skip("vLLM is compared with itself")
    needing = parity.needing(declared)
    assert needing, "stale: no reply needs it"
    assert needing.issuperset(declared.only), f"stale for {sorted(set(declared.only) - needing)}"


def test_streams_end_in_done_or_in_an_error(parity: Parity) -> None:
    """The contract of streams holds for every reply."""
    if parity.with_itself:
        pytest.skip("vLLM sends both")
    assert [name for name, reply in parity.jubako.items() if not ends_as_a_stream_must(reply)] == []


def test_events_are_seldom_joined(parity: Parity) -> None:
    """Putting streams together is for chance; a server that joined tokens as a rule would hide behind it."""
    assert len(parity.cut_elsewhere()) <= MOST_STREAMS_CUT_ELSEWHERE, parity.cut_elsewhere()


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_adapter_changes_the_answer(parity: Parity, kind: str) -> None:
    """Otherwise the requests to the adapter would prove nothing."""
    adapted, plain = parity.jubako[f"{kind} answers with the adapter"], parity.jubako[f"{kind} answers"]
    assert adapted.document["choices"] != plain.document["choices"]
