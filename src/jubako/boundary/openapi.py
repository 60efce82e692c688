"""The API as an OpenAPI 3.1 document, made of the tables of routes and fields and of the limits in force.

A request that fits the document is answered, or refused with one of the statuses it names. Knows no server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jubako import __version__
from jubako.boundary import fields
from jubako.boundary.fields import Real, Shape, Spec, Table, TokenIds, Whole, Words
from jubako.boundary.limits import LARGEST_TOKEN_ID
from jubako.vocabulary import Limits

_Schema = dict[str, Any]
_ERRORS: Mapping[str, str] = {
    "400": "The request can never succeed as it stands.",
    "401": "No valid credential.",
    "403": "The credential is not allowed to do this.",
    "404": "No such URL or model.",
    "405": "The URL takes another method.",
    "408": "The body did not arrive in time.",
    "413": "The body has too many bytes.",
    "415": "The body is not plain JSON.",
    "429": "A budget is used up, or the queue is full. `retry-after` says when to come back, if that helps.",
    "500": "A fault of the server's.",
    "503": "The server cannot answer now.",
    "504": "The request's time was up.",
}
_BODY_ONLY = frozenset({"408", "413", "415"})
_REQUIRED = {"ChatRequest": ["messages"], "CompletionRequest": ["prompt"]}
_NAMES_OF_LIMITS = ("maxItems", "maxProperties", "maxLength")


def document(limits: Limits) -> _Schema:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Jubako",
            "version": __version__,
            "description": "The part of OpenAI's API that is served. Fields that are not listed are refused.",
        },
        "security": [{"key": []}],
        "paths": {
            "/v1/models": {"get": _operation("listModels", "The models that may be asked for.", "ModelList")},
            "/v1/models/{model}": {
                "get": _operation("showModel", "One of the models.", "Model")
                | {"parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]}
            },
            "/v1/chat/completions": {
                "post": _operation("chat", "The next message of a conversation.", "ChatReply", "ChatRequest")
            },
            "/v1/completions": {
                "post": _operation("complete", "The continuation of a text.", "CompletionReply", "CompletionRequest")
            },
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": _resolved(_schemas(limits), limits),
            "responses": {f"Error{status}": _error(text) for status, text in _ERRORS.items()},
        },
    }


def _operation(name: str, summary: str, reply: str, request: str | None = None) -> _Schema:
    content: _Schema = {"application/json": {"schema": {"$ref": f"#/components/schemas/{reply}"}}}
    description = "The reply."
    if request is not None:
        # Without a schema: OpenAPI 3.1 does not say whether one would be of the whole text or of each event.
        content["text/event-stream"] = {}
        description = (
            "The reply; with `stream`, events whose data is a part of it each. The last is `[DONE]` or an error."
        )
    refused = (status for status in _ERRORS if request is not None or status not in _BODY_ONLY)
    found: _Schema = {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": description, "content": content},
            **{status: {"$ref": f"#/components/responses/Error{status}"} for status in refused},
        },
    }
    if request is not None:
        schema = {"$ref": f"#/components/schemas/{request}"}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def _error(text: str) -> _Schema:
    schema = {"$ref": "#/components/schemas/Error"}
    headers = {"x-request-id": {"schema": {"type": "string"}}, "x-should-retry": {"schema": {"type": "string"}}}
    return {"description": text, "headers": headers, "content": {"application/json": {"schema": schema}}}


def _schemas(limits: Limits) -> _Schema:
    text_parts = [_object(table, limits, ["type"]) for table in fields.TEXT_PARTS.values()]
    image = _object(fields.IMAGE_PART, limits, ["type", "image_url"])
    image["properties"]["image_url"] = _object(fields.IMAGE_URL, limits, ["url"])
    tool = _object(fields.TOOL, limits, ["type", "function"])
    tool["properties"]["function"] = _object(fields.FUNCTION, limits, ["name"])
    call = _object(fields.TOOL_CALL, limits, ["function"])
    call["properties"]["function"] = _object(fields.CALLED_FUNCTION, limits, ["name", "arguments"])
    nested = {
        "repetition_detection": _object(fields.REPETITION_DETECTION, limits, []),
        "response_format": _object(fields.RESPONSE_FORMAT, limits, ["type"]),
        "stream_options": _object(fields.STREAM_OPTIONS, limits, []),
        "structured_outputs": _object(fields.STRUCTURED_OUTPUTS, limits, []),
    }
    requests = {}
    for name, table in (("ChatRequest", fields.CHAT), ("CompletionRequest", fields.COMPLETIONS)):
        requests[name] = _object(table, limits, _REQUIRED[name])
        requests[name]["properties"] |= {
            field: {"anyOf": [schema, {"type": "null"}]} for field, schema in nested.items()
        }
    requests["CompletionRequest"]["properties"]["best_of"] = {
        "description": "Has no effect. If it is there, it must be the value of `n`.",
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": limits.choices,
    }
    reply = {"type": "object", "required": ["id", "object", "choices"], "properties": {"id": {"type": "string"}}}
    return {
        **requests,
        "Message": _object(fields.MESSAGE, limits, ["role"]),
        "Part": {"anyOf": [*text_parts, image]},
        "Tool": tool,
        "ToolCall": call,
        "TokenId": {"type": "integer", "minimum": 0, "maximum": LARGEST_TOKEN_ID},
        "ChatReply": reply,
        "CompletionReply": reply,
        "Model": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
        "ModelList": {
            "type": "object",
            "required": ["data"],
            "properties": {"data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}},
        },
        "Error": {
            "type": "object",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "param", "code"],
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"type": "string"},
                        "param": {"type": ["string", "null"]},
                        "code": {"type": "string"},
                    },
                }
            },
        },
    }


def _object(table: Table, limits: Limits, required: list[str]) -> _Schema:
    properties: _Schema = {}
    for name, spec in sorted(table.open.items()):
        schema = _field(spec, limits)
        properties[name] = schema if name in required else _or_null(schema)
    for name, values in sorted(table.ignored.items()):
        properties[name] = {"description": "Has no effect.", **({} if values is None else {"enum": list(values)})}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _field(spec: Spec, limits: Limits) -> _Schema:
    if isinstance(spec, Whole):
        high = spec.high if isinstance(spec.high, int) else getattr(limits, spec.high)
        return {"type": "integer", "minimum": spec.low, "maximum": high}
    if isinstance(spec, Real):
        return {"type": "number", "minimum": spec.low, "maximum": spec.high}
    if isinstance(spec, TokenIds):
        return {"type": "array", "items": {"$ref": "#/components/schemas/TokenId"}, "maxItems": spec.items}
    if isinstance(spec, Words):
        word = {"type": "string", "maxLength": spec.characters}
        words = {"type": "array", "items": word, "maxItems": spec.items}
        return {"anyOf": [word, words]} if spec.alone else words
    if not isinstance(spec, Shape):
        raise TypeError(spec)
    return dict(spec.schema)


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _resolved(value: Any, limits: Limits) -> Any:
    """`value` with the names of limits replaced by their numbers."""
    if isinstance(value, Mapping):
        return {
            key: getattr(limits, inner)
            if key in _NAMES_OF_LIMITS and isinstance(inner, str)
            else _resolved(inner, limits)
            for key, inner in value.items()
        }
    return [_resolved(inner, limits) for inner in value] if isinstance(value, list) else value
