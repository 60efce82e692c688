"""What is reachable beside the API: BentoML's own application behind the guard, over real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest

from tests.guarded_service import (
    BROKEN,
    OPERATOR,
    ORIGIN,
    SECONDS,
    TENANT,
    Answer,
    ask,
    bearer,
    guarded_service,
    serving,
)

SURFACES = ("/metrics", "/schema.json", "/docs.json", "/")
SPELLINGS = (
    *("/metrics/", "//metrics", "/./metrics", "/x/../metrics", "/v1/../metrics", "/v1/%2e%2e/metrics", "/METRICS"),
    *(
        "/%6detrics",
        "/metrics%2f",
        "/%2fmetrics",
        "/metrics;x",
        "/metrics%20",
        "/metrics%00",
        "/metrics?x=1",
        "/%2e/metrics",
    ),
    *("/metrics#x", "\\metrics", "/%5cmetrics", "/v1//../metrics", "/schema.json/", "//schema.json", "/Schema.json"),
    *("/schema%2ejson", "/docs.json/", "/%64ocs.json", "//", "///", "/.", "/..", "/%2e%2e/", "*", "metrics", ""),
    *("http://localhost/metrics", "http://localhost//metrics", "http://localhost", "HTTP://x/schema.json", "/v1/../"),
    *("http://user@localhost/metrics", "/livez/../metrics", "/readyz/..%2fmetrics", "/static_content/../metrics"),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The server under its usual settings, with one origin for browsers."""
    with serving(guarded_service(cors_origins=[ORIGIN])) as found:
        yield found


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz"])
def test_probes_are_open(port: int, path: str) -> None:
    """An orchestrator has no key."""
    assert ask(port, path).status == 200


def test_metrics_are_the_operators(port: int) -> None:
    """No key: 401; a tenant's: 403; the operator's: the page, in the format it asked for."""
    assert (ask(port, "/metrics").status, ask(port, "/metrics").code) == (401, "invalid_api_key")
    refused = ask(port, "/metrics", headers=bearer(TENANT))
    assert (refused.status, refused.code) == (403, "scope_missing")
    assert refused.headers["x-request-id"]
    shown = ask(port, "/metrics", headers={"accept": "openmetrics", **bearer(OPERATOR)})
    assert (shown.status, shown.body) == (200, b"# metrics, asked for as openmetrics")
    assert shown.headers["content-type"] == "text/plain; version=0.0.4"


def test_a_fault_of_the_authentication_opens_nothing(port: int) -> None:
    """And is not told."""
    answer = ask(port, "/metrics", headers=bearer(BROKEN))
    assert (answer.status, answer.code) == (500, "internal_error")
    assert b"secret" not in answer.body


@pytest.mark.parametrize("path", ["/schema.json", "/docs.json", "/", "/static_content/index.html"])
def test_what_is_closed_looks_as_if_it_did_not_exist(port: int, path: str) -> None:
    """For the operator too."""
    for headers in ({}, bearer(OPERATOR)):
        answer = ask(port, path, headers=headers)
        assert (answer.status, answer.code) == (404, "unknown_url")


@pytest.mark.parametrize("target", SPELLINGS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "CONNECT", "TRACE", "PATCH"])
def test_no_spelling_of_a_path_reaches_a_guarded_page(port: int, method: str, target: str) -> None:
    """Refused, or answered by the application, which has no such page."""
    answer = ask(port, target, method=method, headers={"content-length": "0"})
    assert answer.of_ours or answer.status in {400, 401, 404, 405}, (answer.status, answer.body[:80])
    assert b"# HELP" not in answer.body
    assert b"openapi" not in answer.body


@pytest.mark.parametrize("target", ["localhost:80", "localhost:80/metrics", "/metrics"])
def test_a_proxy_is_not_what_this_is(port: int, target: str) -> None:
    """CONNECT leads nowhere."""
    answer = ask(port, target, method="CONNECT", headers=bearer(OPERATOR))
    assert answer.of_ours or answer.status in {0, 400, 404, 405}


def test_a_guarded_page_takes_reading_alone(port: int) -> None:
    """From the operator too."""
    answer = ask(port, "/metrics", method="DELETE", headers=bearer(OPERATOR))
    assert (answer.status, answer.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/a/b", "/nothing", "/v1", "/favicon.ico"])
def test_everything_else_is_the_applications(port: int, path: str) -> None:
    """It knows what exists."""
    answer = ask(port, path)
    assert answer.of_ours
    assert json.loads(answer.body)["path"] == path


def test_two_credentials_are_one_too_many(port: int) -> None:
    """Even where one of them would do."""
    raw = "GET {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: {}\r\nauthorization: {}\r\n\r\n"
    for path in ("/metrics", "/v1/models"):
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
            connection.sendall(raw.format(path, TENANT, OPERATOR).encode())
            answer = Answer(b"".join(iter(lambda: connection.recv(65_536), b"")))
        assert (answer.status, answer.code) == (400, "invalid_header")


def test_a_body_is_asked_for_only_when_it_is_wanted(port: int) -> None:
    """`Expect: 100-continue` is answered when the body is read, and not at all for a refused request."""
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 2\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(head.encode() + b"\r\n")
        assert b"100" in connection.recv(100).split(b"\r\n")[0]
        connection.sendall(b"{}")
        assert b'"bytes": 2' in b"".join(iter(lambda: connection.recv(65_536), b""))
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(head.encode() + b"content-encoding: gzip\r\n\r\n")
        assert b"415" in connection.recv(100).split(b"\r\n")[0]


def test_every_route_of_bentoml_is_decided_on() -> None:
    """A new one of a new BentoML fails here until someone has looked at it."""
    paths = {getattr(route, "path", "") for route in guarded_service().routes}
    assert paths - {""} | {"/metrics"} == {*SURFACES, "/livez", "/healthz", "/readyz", "/static_content"}
