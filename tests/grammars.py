"""Schemas and grammars as callers send them: ordinary ones, costly ones, and wrong ones."""

from __future__ import annotations

import json
from typing import Any

from jubako.engine.vllm.vetting import Constraint

NAMES = [f"field{i}" for i in range(30)]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "tags": {"type": "array"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
        }
    },
    "$ref": "#/$defs/node",
}
TOOLS_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<call>",
        "content": {"type": "json_schema", "json_schema": PERSON},
        "end": "</call>",
    },
}
ORDINARY: dict[str, dict[str, Any]] = {
    "object": {"json": PERSON},
    "object as text": {"json": json.dumps(PERSON)},
    "nested": {"json": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": PERSON}}}}},
    "recursive": {"json": TREE},
    "many fields": {
        "json": {"type": "object", "properties": {n: {"type": ["string", "null"]} for n in NAMES}, "required": NAMES}
    },
    "any of": {"json": {"anyOf": [PERSON, {"type": "null"}, {"type": "array", "items": PERSON}]}},
    "long enum": {"json": {"enum": [f"country number {i}" for i in range(500)]}},
    "bounded text": {"json": {"type": "string", "minLength": 1, "maxLength": 200}},
    "bounded list": {"json": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 1000}},
    "date": {"json": {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}},
    "pattern": {"json": {"type": "string", "pattern": r"^[A-Z]{2}-\d{4}$"}},
    "unicode pattern": {"json": {"type": "string", "pattern": "^[ぁ-ん一-龯äöü]{1,20}$"}},
    "unicode enum": {"json": {"enum": ["はい", "いいえ", "naïve"]}},
    "any object": {"json_object": True},
    "telephone": {"regex": r"\+?\d{1,3}[ -]?\d{3,4}[ -]?\d{4,8}"},
    "address": {"regex": r"[\w.+-]+@[\w-]+\.[\w.]{2,20}"},
    "choices": {"choice": ["positive", "negative", 'with "quotes"', "新しい"]},
    "grammar": {"grammar": 'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"'},
    "lark grammar": {"grammar": 'start: "yes" | "no"'},
    "structural tag": {"structural_tag": json.dumps(TOOLS_TAG)},
}
COSTLY: dict[str, dict[str, Any]] = {
    "nested repetition": {"regex": "((((a{0,60}){0,60}){0,60}){0,60})"},
    "endless ambiguity": {"regex": "(a|aa|aaa|aaaa)*" * 400},
    "deep parentheses": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "a million items": {"json": {"type": "array", "minItems": 1_000_000, "maxItems": 1_000_000_000}},
    "many rules": {
        "grammar": "root ::= "
        + " ".join(f"r{i}" for i in range(3000))
        + "".join(f'\nr{i} ::= [a-z]{{0,50}} | ""' for i in range(3000))
    },
}
WRONG: dict[str, dict[str, Any]] = {
    "class that is not known": {"regex": r"\p{L}+"},
    "unclosed class": {"regex": "[a-"},
    "nul": {"regex": "a\x00b"},
    "lone surrogate": {"regex": "\ud800"},
    "no schema": {"json": "{"},
    "a number for a schema": {"json": "3"},
    "schema of itself": {"json": {"$ref": "#"}},
    "reference to nothing": {"json": {"$ref": "#/$defs/none"}},
    "nothing is allowed": {"json": {"enum": []}},
    "no rule": {"grammar": "root ::= missing"},
    "no choice": {"choice": []},
    "two kinds": {"regex": "a", "choice": ["b"]},
    "no tag": {"structural_tag": "{}"},
    "a million things that may not be, in a tag": {
        "structural_tag": json.dumps(
            {
                "type": "structural_tag",
                "format": {"type": "json_schema", "json_schema": {"type": "array", "minItems": 10**6}},
            }
        )
    },
}
SLOW = COSTLY["deep parentheses"]


def constraint(fields: dict[str, Any]) -> Constraint:
    """One that came as `response_format`."""
    return Constraint(fields, "response_format")


def unlike(number: int) -> Constraint:
    """A slow one that no other is equal to."""
    return constraint({"regex": "b" * number + SLOW["regex"]})
