"""What vLLM's adapter makes of a request before anything is generated."""

from __future__ import annotations

import pytest

from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.caller import call_of

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("value", [True, "text", [], 0.5], ids=repr)
def test_a_field_that_trips_vllm_s_validators_is_the_caller_s_fault(value: object) -> None:
    """Whatever their code raises for it, it is a 400 and not a 500."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    from jubako.engine.vllm.adapter import _validated

    body = {"messages": [{"role": "user", "content": "hi"}], "structured_outputs": value}
    with pytest.raises(InvalidRequest):
        _validated(ChatCompletionRequest, call_of(Route.CHAT, body))
