"""What is reachable beside the API: BentoML's own application behind the guard, over real sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from pydantic import ValidationError

from jubako.boundary.application import Application
from jubako.boundary.exchange import Exchange
from jubako.boundary.surfaces import SurfaceGuard
from jubako.errors import BodyTimeout, ClientGone, Refusal, Unauthenticated
from jubako.sections import SurfaceSettings
from jubako.vocabulary import Budget, Document, Policy, Principal, Scope
from tests.boundary_limits import configured

OPERATOR, TENANT, BROKEN = "Bearer operator", "Bearer tenant", "Bearer broken"
ORIGIN = "https://app.example"
OURS = "the application"
SURFACES = ("/metrics", "/schema.json", "/docs.json", "/")
PROBES = {"livez": "/livez", "readyz": "/readyz"}
SECONDS = 60.0


def principal(*scopes: Scope) -> Principal:
    """Someone with these scopes."""
    held = frozenset(scopes)
    policy = Policy(None, held, 1.0, 1, 60.0, 10.0, configured(), Budget(), Budget())
    return Principal("tenant", "key", held, policy)


async def authenticate(authorization: str | None) -> Principal:
    """Two known credentials."""
    if authorization == OPERATOR:
        return principal(Scope.OPERATOR)
    if authorization == TENANT:
        return principal(Scope.CHAT, Scope.MODELS)
    if authorization == BROKEN:
        raise RuntimeError("secret")
    raise Unauthenticated("No.")


async def scrape(accept: str) -> tuple[bytes, str]:
    """The metrics, in the one format that there is."""
    return f"# metrics, asked for as {accept}".encode(), "text/plain; version=0.0.4"


async def ours(exchange: Exchange) -> None:
    """The mounted application: says which path it saw, after the body if one was announced."""
    try:
        exchange.require_sound_headers()
        body = await exchange.body(limit_bytes=1000, limit_seconds=1) if exchange.method == "POST" else b""
    except (ClientGone, BodyTimeout):
        await exchange.abandon()
    except Refusal as refusal:
        await exchange.refuse(refusal)
    else:
        answer = {"app": OURS, "path": exchange.path, "bytes": len(body)}
        await exchange.document(Document(json.dumps(answer).encode()))


def guarded_service(**settings: Any) -> Any:
    """BentoML's application with ours mounted and the guard around both."""
    os.environ["BENTOML_DO_NOT_TRACK"] = "True"
    import bentoml
    from bentoml._internal.configuration.containers import BentoMLContainer
    from bentoml._internal.server.metrics.prometheus import PrometheusClient

    BentoMLContainer.metrics_client.set(PrometheusClient(multiproc=False))

    class Surfaces:
        """Nothing of its own."""

    service = bentoml.service(name="surfaces", endpoints=PROBES, metrics={"enabled": False})(
        bentoml.asgi_app(Application(ours))(Surfaces)
    )
    chosen = SurfaceSettings(**({"metrics": "operator", "documentation": "closed", "cors_origins": []} | settings))
    service.add_asgi_middleware(SurfaceGuard, settings=chosen, authenticate=authenticate, scrape=scrape)
    return service.to_asgi()


@contextmanager
def serving(app: Any) -> Iterator[int]:
    """A port on which uvicorn serves `app`, as BentoML runs it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, http="httptools", loop="asyncio"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        listener.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The server under its usual settings, with one origin for browsers."""
    with serving(guarded_service(cors_origins=[ORIGIN])) as found:
        yield found


class Answer:
    """One reply, as its bytes are."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1]) if first else 0
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def of_ours(self) -> bool:
        """Whether the mounted application gave it, rather than BentoML."""
        return OURS.encode() in self.body

    @property
    def code(self) -> str | None:
        """The error's code, if it is one of ours."""
        try:
            return str(json.loads(self.body)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return None


def ask(
    port: int, target: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: bytes = b""
) -> Answer:
    """One request whose target is sent as it is written."""
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return Answer(b"".join(iter(lambda: connection.recv(65_536), b"")))


def bearer(value: str) -> dict[str, str]:
    """The header of a credential."""
    return {"authorization": value}


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


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


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


def test_every_route_of_bentoml_is_decided_on() -> None:
    """A new one of a new BentoML fails here until someone has looked at it."""
    paths = {getattr(route, "path", "") for route in guarded_service().routes}
    assert paths - {""} | {"/metrics"} == {*SURFACES, "/livez", "/healthz", "/readyz", "/static_content"}


@pytest.mark.parametrize(
    "origin", ["*", "null", "app.example", "https://app.example/", "https://*.example", "https://a, https://b"]
)
def test_an_origin_is_written_as_browsers_send_it(origin: str) -> None:
    """No wildcard, no path."""
    with pytest.raises(ValidationError):
        SurfaceSettings(metrics="closed", documentation="closed", cors_origins=[origin])
