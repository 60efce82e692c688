"""BentoML's own application behind the guard, with ours mounted, over a real socket; and one raw request to it."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

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
