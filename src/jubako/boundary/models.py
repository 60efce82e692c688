"""The models that a caller may use, as `/v1/models` and `/v1/models/{alias}` show them."""

from __future__ import annotations

import json
from typing import Any

from jubako.boundary.routes import Match
from jubako.errors import NotFound
from jubako.vocabulary import Document, Principal, Route


def document(cards: list[dict[str, Any]], match: Match, principal: Principal) -> Document:
    """Every name that the principal may use, or the one of the path; raises `NotFound` if it may not."""
    approved = [card for card in cards if principal.policy.approves(card["id"])]
    if match.route is Route.MODELS:
        return _json({"object": "list", "data": approved})
    for card in approved:
        if card["id"] == match.model:
            return _json(card)
    raise unknown()


def unknown() -> NotFound:
    """What is said of a name that is not there and of one that is not approved: existence is not told."""
    return NotFound("The model does not exist. GET /v1/models lists the names.", code="model_not_found", param="model")


def _json(value: Any) -> Document:
    return Document(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
