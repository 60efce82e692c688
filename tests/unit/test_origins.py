"""Pages of other origins: a configured one may ask the API's routes, no other one anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from jubako.boundary.application import Application
from jubako.boundary.surfaces import SurfaceGuard
from jubako.sections import SurfaceSettings
from tests.guarded_service import OPERATOR, ORIGIN, ask, authenticate, bearer, guarded_service, ours, scrape, serving

PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The server under its usual settings, with one origin for browsers."""
    with serving(guarded_service(cors_origins=[ORIGIN])) as found:
        yield found


def test_a_configured_origin_may_ask(port: int) -> None:
    """For the API's own routes, without credentials of the browser's."""
    answer = ask(port, "/v1/chat/completions", method="OPTIONS", headers={"origin": ORIGIN, **PREFLIGHT})
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert answer.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in answer.headers
    read = ask(port, "/v1/models", headers={"origin": ORIGIN})
    assert read.headers["access-control-allow-origin"] == ORIGIN
    for name in ("x-request-id", "retry-after", "retry-after-ms", "x-ratelimit-remaining-tokens"):
        assert name in read.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    "origin",
    [
        "https://other.example",
        "http://app.example",
        "https://app.example:8443",
        "https://app.example.evil",
        "null",
        "*",
        "",
        "https://APP.example",
        "https://app.example/",
        "https://evil.app.example",
        "https://app.example, https://x",
    ],
)
def test_no_other_origin_may_ask(port: int, origin: str) -> None:
    """Exact or not at all."""
    for method, more in (("OPTIONS", PREFLIGHT), ("GET", {})):
        answer = ask(port, "/v1/models", method=method, headers={"origin": origin, **more})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/nothing", "POST"), ("/v1/models", "POST"), ("/v1/models", "DELETE")]
)
def test_what_does_not_exist_has_no_preflight(port: int, path: str, method: str) -> None:
    """The application says what it is."""
    headers = {"origin": ORIGIN, "access-control-request-method": method}
    assert ask(port, path, method="OPTIONS", headers=headers).of_ours


def test_a_guarded_page_is_no_browsers(port: int) -> None:
    """Whatever its origin."""
    answer = ask(port, "/metrics", headers={"origin": ORIGIN, **bearer(OPERATOR)})
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_without_origins_nothing_is_said_of_them() -> None:
    """Off unless configured; and an operator may open what is guarded."""
    settings = SurfaceSettings(metrics="open", documentation="open", cors_origins=[])
    guard = SurfaceGuard(Application(ours), settings=settings, authenticate=authenticate, scrape=scrape)
    for path in ("/metrics", "/schema.json", "/v1/models"):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"origin", ORIGIN.encode())]}
        await guard(scope, send, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == 200
        assert not {b"vary", b"access-control-allow-origin"} & {name for name, _ in sent[0]["headers"]}


@pytest.mark.parametrize(
    "origin", ["*", "null", "app.example", "https://app.example/", "https://*.example", "https://a, https://b"]
)
def test_an_origin_is_written_as_browsers_send_it(origin: str) -> None:
    """No wildcard, no path."""
    with pytest.raises(ValidationError):
        SurfaceSettings(metrics="closed", documentation="closed", cors_origins=[origin])
