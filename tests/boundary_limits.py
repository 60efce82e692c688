"""The limits that the repository's configuration states, and small ones, for tests of the boundary."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from jubako import documents
from jubako.boundary import limits
from jubako.sections import LimitSettings
from jubako.vocabulary import Demand, Limits, Route
from tests.hostile import says

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def configured() -> Limits:
    """Those of `configuration/server.yaml`."""
    data = documents.read(ROOT / "configuration" / "server.yaml").data
    return LimitSettings.model_validate(data["limits"]).limits


def limited(**changes: Any) -> Limits:
    """The configured ones with some changed."""
    return replace(configured(), **changes)


DEFAULT = configured()
FUNCTION = {"type": "function", "function": {"name": "x"}}


def check(route: Route, limit: Limits | None = None, /, **body: Any) -> tuple[dict[str, Any], Demand]:
    """The body and the demand of a request that is harmless but for `body`."""
    prompt = {"messages": says("Hello")} if route is Route.CHAT else {"prompt": "Hello"}
    return limits.check(route, prompt | body, limit or DEFAULT, media_salt="salt")
