"""Requests made of the OpenAPI document by schemathesis, sent to a server, each reply checked against the document.

It knows the document and HTTP; which server it is, and what stands behind it, the test says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import requests
import schemathesis
from schemathesis import checks
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as openapi_checks

from tests.boundary_limits import ROOT

DOCUMENT = ROOT / "docs" / "openapi.json"
SCHEMA = schemathesis.openapi.from_path(DOCUMENT)
# The key is always sent: a fuzzed one would be refused, and the request with it.
SCHEMA.config.generation.with_security_parameters = False
OPERATIONS = {one.ok().label: one.ok() for one in SCHEMA.get_all_operations() if isinstance(one, Ok)}
FUZZES = [
    (label, mode)
    for label in OPERATIONS
    for mode in schemathesis.GenerationMode
    # Nothing can be wrong about a request that has no body, but its URL and its key.
    if mode is schemathesis.GenerationMode.POSITIVE or label.startswith("POST")
]
CHECKS: list[Callable[..., Any]] = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
]
STALL_SECONDS = 60.0
FEW_TOKENS = 4
FEW = 2
SHORTENED = {
    "max_tokens": FEW_TOKENS,
    "max_completion_tokens": FEW_TOKENS,
    "min_tokens": FEW_TOKENS,
    "n": FEW,
}
"""Fields whose value is work. Values that are valid come down to this; what is not valid stays."""


@dataclass
class Fuzzing:
    """One server that is asked, for at most `seconds`, and what came of it."""

    url: str
    key: str
    model: str
    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_seconds: float = 0.0

    def run(self, operation: str, mode: schemathesis.GenerationMode, *, examples: int) -> None:
        """Ask `examples` times, the same ones at each run; raises what the first failed check says."""
        end = time.monotonic() + self.seconds
        strategy = OPERATIONS[operation].as_strategy(generation_mode=mode)

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            # No shrinking: an example costs the engine's time, and the first one found is written out.
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=strategy)
        def ask(case: schemathesis.Case[Any]) -> None:
            if time.monotonic() < end:
                self._ask(case, positive=mode is schemathesis.GenerationMode.POSITIVE)

        with requests.Session() as self._session:
            ask()

    def _ask(self, case: schemathesis.Case[Any], *, positive: bool) -> None:
        if isinstance(case.body, dict):
            case.body = self._lightened(case.body, positive=positive)
        if positive and "model" in case.path_parameters:
            case.path_parameters["model"] = self.model
        started = time.monotonic()
        reply = case.call(
            base_url=self.url,
            session=self._session,
            headers={"authorization": f"Bearer {self.key}"},
            timeout=STALL_SECONDS,
            allow_redirects=False,
        )
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started)
        self.statuses[reply.status_code] += 1
        case.validate_response(reply, checks=CHECKS)

    def _lightened(self, body: dict[str, Any], *, positive: bool) -> dict[str, Any]:
        """The same request with little to generate; a valid one names the model, or it would never reach the engine."""
        body = {"max_tokens": FEW_TOKENS} | body
        if body["max_tokens"] is None:
            body["max_tokens"] = FEW_TOKENS
        for name, most in SHORTENED.items():
            if type(value := body.get(name)) is int and most < value < 1 << 15:
                body[name] = most
        if isinstance(prompts := body.get("prompt"), list):
            body["prompt"] = prompts[:FEW]
        if positive:
            body = {name: _whole(value) for name, value in body.items()}
            body["model"] = self.model
            if body.get("best_of") is not None:
                body["best_of"] = body.get("n") or 1
        return body


def _whole(value: Any) -> Any:
    """`value` with `5.0` as 5 within lists: both are integers to JSON Schema, and a token's id is taken as 5 alone."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
