"""Which grammars are found in a request, and whose fault an error is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jubako.errors import InternalError, InvalidRequest

pytestmark = pytest.mark.engine

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = {"type": "function", "function": {"name": "look"}}


def request(**fields: Any) -> Any:
    """vLLM's own record of a chat request."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "hi"}], **fields})


@pytest.mark.parametrize(
    ("fields", "found", "param"),
    [
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::= 'a'"}}, {"grammar": "root ::= 'a'"}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"json": SCHEMA},
            "response_format",
        ),
        ({"structured_outputs": {"json_object": False}}, {"json_object": False}, "structured_outputs"),
        ({"response_format": TAG}, {"structural_tag": json.dumps(TAG)}, "response_format"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_a_caller_s_own_constraint_is_found(fields: dict[str, Any], found: dict[str, Any], param: str) -> None:
    """With the field it came from."""
    from jubako.engine.vllm import constraints

    assert constraints.any_in(fields)
    constraint = constraints.of_request(request(**fields))
    assert constraint is not None
    assert constraint.fields == found
    assert constraint.param == param


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"tools": None}], ids=str)
def test_without_a_constraint_there_is_none(fields: dict[str, Any]) -> None:
    """Most requests have none, and are not to pay for it."""
    from jubako.engine.vllm import constraints

    assert constraints.of_request(request(**fields)) is None


@pytest.mark.parametrize("choice", ["required", CALL], ids=["required", "named"])
def test_tools_that_are_called_for_bring_their_parameters(choice: Any) -> None:
    """What the tool parser makes of them is what the engine gets; the request itself stays as it was."""
    from vllm.tool_parsers.abstract_tool_parser import ToolParser

    from jubako.engine.vllm import constraints

    asked = request(tools=[TOOL], tool_choice=choice)
    parser = ToolParser.__new__(ToolParser)
    parser.supports_required_and_named = True
    constraint = constraints.of_tools(asked, lambda: parser)
    assert constraint is not None
    assert constraint.param == "tools"
    assert '"a"' in json.dumps(constraint.fields["json"])
    assert asked.structured_outputs is None


def test_strict_tools_bring_a_structural_tag_with_their_parameters(model_folder: Path) -> None:
    """A costly pattern in a tool's parameters is seen before vLLM reads it."""
    from vllm.parser import ParserManager
    from vllm.tokenizers import get_tokenizer

    from jubako.engine.vllm import constraints

    tool = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    asked = request(tools=[tool], tool_choice="auto")
    kind = ParserManager.get_parser(tool_parser_name="hermes", reasoning_parser_name=None, enable_auto_tools=True)
    constraint = constraints.of_tools(asked, lambda: kind(get_tokenizer(str(model_folder)), asked.tools))
    assert constraint is not None
    assert json.loads(constraint.fields["structural_tag"])["type"] == "structural_tag"
    assert '"a"' in constraint.fields["structural_tag"]
    assert asked.structured_outputs is None


def test_tools_that_may_not_be_called_bring_nothing() -> None:
    """No parser is made for them."""
    from jubako.engine.vllm import constraints

    assert constraints.of_tools(request(tools=[TOOL], tool_choice="none"), pytest.fail) is None


def test_structural_tags_are_found_before_the_fields_are_validated() -> None:
    """The validation of the fields reads them already."""
    from jubako.engine.vllm import constraints

    body = {"structured_outputs": {"structural_tag": "one"}, "response_format": TAG}
    assert [one.fields["structural_tag"] for one in constraints.of_body(body)] == ["one", json.dumps(TAG)]
    with pytest.raises(InvalidRequest):
        constraints.of_body({"structured_outputs": {"structural_tag": {"type": "structural_tag"}}})


def test_a_choice_reaches_the_engine_as_the_grammar_that_it_is() -> None:
    """And always on the same backend, whoever came first."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams

    from jubako.engine.vllm import constraints

    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", 'b"']))
    constraints.settle(params, "auto")
    assert params.structured_outputs._backend == "xgrammar"
    assert params.structured_outputs.choice is None
    assert params.structured_outputs.grammar == r'root ::= "a" | "b\""'


@pytest.mark.parametrize("error", [ValueError("a secret"), TypeError("a secret"), KeyError("a secret")], ids=repr)
def test_a_plain_exception_of_ours_is_our_fault_and_says_nothing(error: Exception) -> None:
    """vLLM makes a 400 with its text of every one."""
    from jubako.engine.vllm import faults

    scope: dict[str, Any] = {"__name__": "jubako.engine.vllm.adapter"}
    exec("def fail(error):\n    raise error\n", scope)
    with pytest.raises(type(error)) as caught:
        scope["fail"](error)
    refusal = faults.from_exception(caught.value)
    assert isinstance(refusal, InternalError)
    assert "secret" not in refusal.message


def test_a_plain_exception_that_vllm_raises_is_about_the_request() -> None:
    """vLLM says much of what is wrong with a request that way."""
    from vllm.sampling_params import SamplingParams

    from jubako.engine.vllm import faults

    with pytest.raises((TypeError, ValueError)) as caught:
        SamplingParams(stop=5)
    assert isinstance(faults.from_exception(caught.value), InvalidRequest)
