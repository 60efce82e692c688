"""The limits that the repository's configuration states, and small ones, for tests of the boundary."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from jubako import documents
from jubako.sections import LimitSettings
from jubako.vocabulary import Limits

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def configured() -> Limits:
    """Those of `configuration/server.yaml`."""
    data = documents.read(ROOT / "configuration" / "server.yaml").data
    return LimitSettings.model_validate(data["limits"]).limits


def limited(**changes: Any) -> Limits:
    """The configured ones with some changed."""
    return replace(configured(), **changes)
