"""Which paths and methods exist. Everything else is refused; knows nothing of what a route does."""

from __future__ import annotations

from dataclasses import dataclass

from jubako.errors import MethodNotAllowed, NotFound
from jubako.vocabulary import Route

_MODELS = "/v1/models"
_PATHS = {
    _MODELS: ("GET", Route.MODELS),
    "/v1/chat/completions": ("POST", Route.CHAT),
    "/v1/completions": ("POST", Route.COMPLETIONS),
}


@dataclass(frozen=True, slots=True)
class Match:
    """The route of a request; `model` is the name in the path of `Route.MODEL`, else empty."""

    route: Route
    model: str = ""


def match(method: str, path: str) -> Match:
    """The route for `method` and the decoded `path`; raises `NotFound` or `MethodNotAllowed`."""
    known = _PATHS.get(path)
    model = ""
    if known is None and path.startswith(_MODELS + "/"):
        known, model = ("GET", Route.MODEL), path.removeprefix(_MODELS + "/")
    if known is None or (known[1] is Route.MODEL and not model):
        raise NotFound("Unknown URL. The API is served under /v1: models, chat/completions, completions.")
    allowed, route = known
    if method != allowed:
        raise MethodNotAllowed(f"This URL takes {allowed} requests only.", allow=allowed)
    return Match(route, model)
