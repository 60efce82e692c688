"""What constrains a reply: tools, response formats, structured outputs. Their shapes and sizes, not their meaning.

Whether a schema, a regular expression or a grammar is one, and what it costs to prepare, the engine's `vet` finds out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jubako.boundary import fields
from jubako.boundary.fields import sift
from jubako.boundary.messages import Tally
from jubako.boundary.reasons import too_many, wrong_type
from jubako.vocabulary import Limits

_CONSTRAINTS = ("json", "regex", "choice", "grammar", "structural_tag", "whitespace_pattern")


def check(kept: dict[str, Any], limits: Limits, tally: Tally) -> bool:
    """Check the constraining fields of `kept` in place; returns whether the reply is constrained by a grammar."""
    constrained = False
    if (tools := kept.get("tools")) is not None:
        # vLLM looks for the named tool before it has validated the list.
        kept["tools"] = _tools(tools, limits, tally, named=isinstance(kept.get("tool_choice"), dict))
        # Under "auto" a parser may still tie the model to a tool's schema once it begins to call it.
        constrained = kept.get("tool_choice", "auto") not in (None, "none")
    if isinstance(choice := kept.get("tool_choice"), dict):
        kept["tool_choice"] = _choice(choice)
    if (response_format := kept.get("response_format")) is not None:
        kept["response_format"] = _response_format(response_format, limits)
        constrained = constrained or kept["response_format"]["type"] != "text"
    if (structured := kept.get("structured_outputs")) is not None:
        kept["structured_outputs"] = _structured_outputs(structured, limits)
        constrained = True
    return constrained


def _tools(tools: Any, limits: Limits, tally: Tally, *, named: bool) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise wrong_type("tools", "list")
    if len(tools) > limits.tools:
        raise too_many("tools", "tools", limits.tools, len(tools))
    checked = []
    for index, tool in enumerate(tools):
        param = f"tools.{index}"
        if not isinstance(tool, dict):
            raise wrong_type(param, "object")
        kept = sift(fields.TOOL, tool, f"{param}.")
        if not isinstance(function := kept.get("function"), dict):
            raise wrong_type(f"{param}.function", "object")
        kept["function"] = sift(fields.FUNCTION, function, f"{param}.function.")
        if named and not isinstance(function.get("name"), str):
            raise wrong_type(f"{param}.function.name", "string")
        _size(function.get("parameters"), limits, f"{param}.function.parameters")
        # As the template prints it, more or less: names, descriptions and schemas are all prompt.
        tally.add(json.dumps(kept["function"], ensure_ascii=False))
        checked.append(kept)
    return checked


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kept = sift(fields.TOOL_CHOICE, choice, "tool_choice.")
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = sift(fields.CHOSEN_FUNCTION, function, "tool_choice.function.")
    return kept


def _response_format(response_format: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(response_format, dict):
        raise wrong_type("response_format", "object")
    kept = sift(fields.RESPONSE_FORMAT, response_format, "response_format.")
    if not isinstance(kept.get("type"), str):
        raise wrong_type("response_format.type", "string")
    if isinstance(holder := kept.get("json_schema"), dict):
        kept["json_schema"] = sift(fields.JSON_SCHEMA, holder, "response_format.json_schema.")
        for name, value in kept["json_schema"].items():
            _size(value, limits, f"response_format.json_schema.{name}")
    for name in ("format", "structures", "triggers"):
        _size(kept.get(name), limits, f"response_format.{name}")
    return kept


def _structured_outputs(structured: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(structured, dict):
        raise wrong_type("structured_outputs", "object")
    kept = sift(fields.STRUCTURED_OUTPUTS, structured, "structured_outputs.")
    if isinstance(choice := kept.get("choice"), list) and len(choice) > limits.token_ids:
        raise too_many("structured_outputs.choice", "choices", limits.token_ids, len(choice))
    for name in _CONSTRAINTS:
        _size(kept.get(name), limits, f"structured_outputs.{name}")
    return kept


def _size(value: Any, limits: Limits, param: str) -> None:
    """Refuse what is larger than `schema_bytes` as JSON; a text counts as it is."""
    if value is None:
        return
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > limits.schema_bytes:
        raise too_many(param, "bytes", limits.schema_bytes, size)
