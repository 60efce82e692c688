"""Which grammars a request brings, at every place where vLLM would read one.

In the serving process vLLM reads callers' grammars at three places, all on the event loop:

1. while a request's fields are validated: structural tags, of `structured_outputs` and of `response_format`;
2. while its tools are worked in: the caller's own constraint, and what the tool parser makes of both;
3. when the request enters the engine: whatever constraint is in force by then.

So the first is found in the body as it was parsed, the second in the validated request, and the third, with everything
else that vLLM's ways may bring, at the narrow waist. It knows vLLM's requests; it checks nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.utils import choice_as_grammar

from jubako.engine.vllm.vetting import Constraint
from jubako.errors import InvalidRequest

SOURCES = ("structured_outputs", "response_format", "tools")
_DEFAULTS = {one.name: one.default for one in fields(StructuredOutputsParams) if one.init}


def any_in(body: Mapping[str, Any]) -> bool:
    """Whether the body can bring a grammar at all."""
    return any(body.get(name) is not None for name in SOURCES)


def of_body(body: Mapping[str, Any]) -> list[Constraint]:
    """The structural tags that the validation of the request's fields will read."""
    found = []
    outputs = body.get("structured_outputs")
    tag = outputs.get("structural_tag") if isinstance(outputs, Mapping) else None
    if tag is not None:
        if not isinstance(tag, str):
            raise InvalidRequest("A structural tag is a string that holds JSON.", param="structured_outputs")
        found.append(Constraint({"structural_tag": tag}, "structured_outputs"))
    shape = body.get("response_format")
    if isinstance(shape, Mapping) and shape.get("type") == "structural_tag":
        try:
            found.append(Constraint({"structural_tag": json.dumps(shape)}, "response_format"))
        except (ValueError, RecursionError):
            raise InvalidRequest("The structural tag is not valid JSON.", param="response_format") from None
    return found


def of_request(request: ChatCompletionRequest | CompletionRequest) -> Constraint | None:
    """The caller's own constraint, before tools are worked in."""
    outputs = request.extract_structured_outputs()
    param = "structured_outputs"
    if request.response_format is not None and request.response_format.type != "text":
        param = "response_format"
    return of_outputs(outputs, param)


def of_tools(request: ChatCompletionRequest, make_parser: Callable[[], Any]) -> Constraint | None:
    """The constraint that is in force once the tool parser has worked the tools in; vet `of_request` before."""
    if not request.tools or request.tool_choice == "none":
        return None
    parser = make_parser()
    if parser is None:
        return None
    # Parsers set fields of the request that they are given, and look deep into it only to read.
    adjusted = parser.adjust_request(request.model_copy())
    return of_outputs(adjusted.extract_structured_outputs(), "tools")


def of_outputs(outputs: StructuredOutputsParams | None, param: str | None) -> Constraint | None:
    """The constraint of vLLM's own record."""
    if outputs is None or outputs.all_constraints_none():
        return None
    values = {name: getattr(outputs, name) for name in _DEFAULTS}
    return Constraint({name: value for name, value in values.items() if value != _DEFAULTS[name]}, param)


def settle(params: SamplingParams, backend: str) -> None:
    """Write into `params`, whose constraint was vetted, what vLLM's own validation would have written.

    `auto` is xgrammar: the engine keeps to the backend of its first request, and which one that is must not depend on
    who happened to come first.
    """
    outputs = params.structured_outputs
    outputs._backend = "xgrammar" if backend == "auto" else backend  # noqa: SLF001 - vLLM's own validation sets it too
    outputs._backend_was_auto = backend == "auto"  # noqa: SLF001
    if outputs.choice is not None and outputs._backend == "xgrammar":  # noqa: SLF001
        outputs.grammar, outputs.choice = choice_as_grammar(outputs.choice), None
