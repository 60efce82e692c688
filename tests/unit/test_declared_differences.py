"""The declared differences rewrite what they are for and nothing else, and the page lists them all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.compare import differences
from tests.contract.differences import DECLARED, promised
from tests.contract.exchange import DONE, Reply
from tests.contract.faults import REQUESTS
from tests.contract.parity import Parity
from tests.contract.table import PAGE, table, table_on

JSON = {"content-type": "application/json"}
BY_NAME = {request.name: request for request in REQUESTS}
NEGATIVE = "chat with a negative temperature is refused"
VLLM = {"message": "bad (parameter=x, value=-1)", "type": "BadRequestError", "param": "x", "code": 400}
JUBAKO = {"message": "bad", "type": "invalid_request_error", "param": "x", "code": "invalid_value"}


def refused(status: int, error: dict[str, Any]) -> Reply:
    """A reply with an error object."""
    return Reply(status, JSON, document={"error": error})


def test_names_are_unique() -> None:
    """A name stands for one request, or one difference."""
    assert len(BY_NAME) == len(REQUESTS)
    assert len({one.name for one in DECLARED}) == len(DECLARED)


def test_differences_name_requests_that_exist() -> None:
    """A misspelt name would never apply."""
    assert {name for one in DECLARED for name in one.only} <= BY_NAME.keys()


def test_bodies_are_json() -> None:
    """What is sent is the body as it is written."""
    for request in REQUESTS:
        assert request.body is None or json.loads(request.content() or b"") == request.body


def test_page_lists_the_declared_differences() -> None:
    """The page says what the test allows: no more, no less."""
    assert table_on(PAGE.read_text()) == table(), "write it anew: python -m tests.contract.table"


def test_an_answer_is_never_rewritten() -> None:
    """No difference applies to a good answer."""
    reply = Reply(200, JSON, document={"choices": []})
    assert promised(BY_NAME["chat answers"], reply, DECLARED) == reply


def test_a_refusal_gets_the_contract_shape() -> None:
    """Type, code and message become those of the contract."""
    assert promised(BY_NAME[NEGATIVE], refused(400, VLLM), DECLARED) == refused(400, JUBAKO)


def test_an_error_event_alone_becomes_a_status() -> None:
    """A stream that is refused before its first token has a status."""
    streamed = Reply(200, {"content-type": "text/event-stream"}, events=[{"error": VLLM}, DONE])
    assert promised(BY_NAME[NEGATIVE], streamed, DECLARED) == refused(400, JUBAKO)


def test_an_error_after_tokens_is_not_excused() -> None:
    """The rewriting is for streams that hold nothing but the error."""
    streamed = Reply(200, {}, events=[{"choices": []}, {"error": VLLM}, DONE])
    assert promised(BY_NAME[NEGATIVE], streamed, DECLARED) == streamed


@pytest.mark.parametrize("change", [{"message": "other"}, {"param": None}, {"code": 400}, {"type": "BadRequestError"}])
def test_a_refusal_in_other_words_still_differs(change: dict[str, Any]) -> None:
    """What is not declared is compared, in refusals as well."""
    expected = promised(BY_NAME[NEGATIVE], refused(400, VLLM), DECLARED)
    assert differences(expected, refused(400, JUBAKO | change))


def test_a_difference_that_no_reply_needs_is_stale() -> None:
    """A server that says what vLLM says needs no difference."""
    vllm = {request.name: Reply(200, JSON, document={}) for request in REQUESTS}
    shape = next(one for one in DECLARED if one.name == "one-error-shape")
    same = Parity(vllm | {NEGATIVE: refused(400, VLLM)}, vllm | {NEGATIVE: refused(400, VLLM)}, (shape,))
    needed = Parity(vllm | {NEGATIVE: refused(400, JUBAKO)}, vllm | {NEGATIVE: refused(400, JUBAKO)}, (shape,))
    met = Parity(
        vllm | {NEGATIVE: refused(400, VLLM)},
        vllm | {NEGATIVE: refused(400, JUBAKO | {"message": VLLM["message"]})},
        (shape,),
    )
    assert same.differences(BY_NAME[NEGATIVE])
    assert needed.needing(shape) == set()
    assert met.differences(BY_NAME[NEGATIVE]) == []
    assert met.needing(shape) == {NEGATIVE}
