"""The OpenAPI document: current, closed, and true to what the limits do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from jubako.boundary import fields, limits, openapi
from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.boundary_limits import ROOT, configured, limited
from tests.hostile import CHAT, COMPLETIONS, base

SCHEMAS = openapi.document(configured())["components"]["schemas"]
REQUESTS = {Route.CHAT: SCHEMAS["ChatRequest"], Route.COMPLETIONS: SCHEMAS["CompletionRequest"]}
PATHS = {Route.CHAT: CHAT, Route.COMPLETIONS: COMPLETIONS}


def test_the_committed_document_is_current() -> None:
    """`jubako openapi > docs/openapi.json` after any change of fields or limits."""
    committed = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(openapi.document(configured())))


def test_the_command_prints_it_without_the_engine() -> None:
    """As JSON, on standard output."""
    code = (
        "import sys; from jubako.cli import jubako; "
        "jubako(['openapi'], standalone_mode=False); sys.exit('vllm' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["openapi"] == "3.1.0"


def references(value: Any) -> set[str]:
    """Every reference in the document."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set[str]().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_reference_leads_somewhere() -> None:
    """Within the document."""
    document = openapi.document(configured())
    for reference in references(document):
        at: Any = document
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]
        assert at


@pytest.mark.parametrize("route", list(REQUESTS))
def test_the_document_has_the_fields_that_may_be_sent(route: Route) -> None:
    """No more and no less."""
    table = fields.ROUTES[route]
    assert REQUESTS[route]["properties"].keys() == table.open.keys() | table.ignored.keys()
    assert REQUESTS[route]["additionalProperties"] is False


def test_bounds_are_those_of_the_limits() -> None:
    """A policy's document has the policy's numbers."""
    found = openapi.document(limited(choices=3, stops=2, tools=1))["components"]["schemas"]["ChatRequest"]["properties"]
    assert found["n"]["anyOf"][0]["maximum"] == 3
    assert found["stop"]["anyOf"][0]["anyOf"][1]["maxItems"] == 2
    assert found["tools"]["anyOf"][0]["maxItems"] == 1


@pytest.mark.parametrize("route", list(REQUESTS))
def test_the_highest_numbers_of_the_document_are_taken(route: Route) -> None:
    """And the next ones refused."""
    for name, schema in REQUESTS[route]["properties"].items():
        number = schema.get("anyOf", [{}])[0]
        if "maximum" not in number:
            continue
        body = base(PATHS[route]) | {"max_tokens": configured().output_tokens} | {name: number["maximum"]}
        limits.check(route, body, configured(), media_salt="salt")
        with pytest.raises(InvalidRequest):
            limits.check(route, body | {name: number["maximum"] + 1}, configured(), media_salt="salt")


def test_every_refusal_is_documented() -> None:
    """With the error object."""
    for path in openapi.document(configured())["paths"].values():
        for operation in path.values():
            assert {"200", "400", "401", "403", "404", "429", "500", "503", "504"} <= operation["responses"].keys()
