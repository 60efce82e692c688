"""A scrape always has an answer, whatever it asks for and whatever goes wrong."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from jubako.boundary.exchange import Exchange
from jubako.boundary.surfaces import SurfaceGuard
from jubako.errors import Unauthenticated
from jubako.sections import SurfaceSettings
from jubako.telemetry.metrics import exposition
from jubako.vocabulary import Principal


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=x",
        "application/openmetrics-text; version=abc",
        "text/plain;version=1.x.y",
        ";;==",
        "*/*;q=a",
    ],
)
def test_a_version_that_is_none_gets_the_plain_format(accept: str) -> None:
    """Rather than an exception, after which nothing would be sent."""
    registry = CollectorRegistry()
    Counter("jubako_test", "A counter.", registry=registry)
    text, content_type = exposition(registry, accept)
    assert b"jubako_test_total 0.0" in text
    assert content_type.startswith("text/plain; version=0.0.4")


async def test_a_scrape_that_fails_is_answered() -> None:
    """With a plain error and nothing of what went wrong."""

    async def nobody(_: str | None) -> Principal:
        raise Unauthenticated("No.")

    async def broken(_: str) -> tuple[bytes, str]:
        raise RuntimeError("secret")

    async def ours(exchange: Exchange) -> None:
        raise AssertionError(exchange.path)

    settings = SurfaceSettings(metrics="open", documentation="closed", cors_origins=[])
    guard = SurfaceGuard(ours, settings=settings, authenticate=nobody, scrape=broken)  # type: ignore[arg-type]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await guard({"type": "http", "method": "GET", "path": "/metrics", "headers": []}, send, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 500
    assert b"secret" not in b"".join(message.get("body", b"") for message in sent)
