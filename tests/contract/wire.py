"""The real gate and pipeline behind a real HTTP server in a thread, with an engine that does what a test says.

Keys, tokens, SQLite budgets and the queue are the product's own. It counts the requests that arrive; it knows nothing
of who sends them or of what the replies should be.
"""

from __future__ import annotations

import functools
import json
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
import yaml

from jubako import settings
from jubako.boundary.application import Application
from jubako.boundary.bodies import Bodies
from jubako.boundary.exchange import Message, Receive, Send
from jubako.gate import keys
from jubako.gate.admission.admission import Admission
from jubako.gate.authentication import Authenticator
from jubako.gate.budgets.opening import budgets
from jubako.life import Life
from jubako.pipeline import Pipeline
from jubako.sections import AdmissionSettings, AuthenticationSettings
from jubako.vocabulary import Scope
from tests import identity_provider
from tests.caller import BODIES, NoBooks, accounts
from tests.identity_provider import KeyPair
from tests.project import REPOSITORY, until
from tests.scripted_engine import ScriptedEngine

SERVER = settings.load(REPOSITORY, {}).server
CHAT = "/v1/chat/completions"
SECONDS = 60.0
LIMITS = {"body_bytes": 4096, "body_seconds": 0.3, "prompt_characters": 1000}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "default": {"limits": LIMITS},
    "lister": {"scopes": ["models"]},
    "one-a-minute": {"tenant_budget": {"requests_per_minute": 1}},
    "few-tokens": {"tenant_budget": {"tokens_per_minute": 8}},
    "one-at-a-time": {"key_budget": {"concurrency": 1}},
    "spent": {"tenant_budget": {"tokens_per_day": 8}},
    "patient": {"queue_seconds": 300, "deadline_seconds": 600},
    "impatient": {"queue_seconds": 0.05},
}
"""Tenant -> what its policy of the same name changes of `standard`."""


class Narrow(ScriptedEngine):
    """An engine that runs one sequence at a time."""

    @property
    def ceiling(self) -> int:
        """One."""
        return 1


class Wire:
    """A server to be run by `serving`; `life` and `engine` are the test's to change while it runs."""

    def __init__(self, folder: Path, engine: ScriptedEngine, admission: AdmissionSettings) -> None:
        self.engine = engine
        self.life = Life()
        self.life.become_ready()
        self.pair = KeyPair("one")
        self.attempts: list[str] = []
        """Method and path of every request that came."""
        self.port = 0
        self.bodies = Bodies(BODIES)
        self._folder = folder
        self._keys: dict[str, str] = {}
        self._write()
        self._budgets = budgets(SERVER.budgets, folder)
        self._admission = Admission(admission, ceiling=engine.ceiling)
        jwt = identity_provider.settings("keys.jwks")
        section = AuthenticationSettings.model_validate(SERVER.authentication.model_dump() | {"jwt": jwt})
        authenticator = Authenticator.load(
            section, folder, SERVER.limits.limits, SERVER.deadline.seconds, frozenset(engine.names)
        )
        pipeline = Pipeline(authenticator, self.life, self._budgets, accounts(NoBooks()), SERVER.stream, self.bodies)
        pipeline.serve(engine, self._admission)
        self._application = Application(pipeline)

    def _write(self) -> None:
        """The files of a project: tenants, a key of each, and the keys that sign tokens."""
        source = REPOSITORY / "configuration" / "tenants.yaml"
        target = self._folder / "configuration" / "tenants.yaml"
        target.parent.mkdir(parents=True)
        shutil.copy(source, target)
        document = yaml.safe_load(target.read_text())
        for name, changes in POLICIES.items():
            document["policies"][name] = document["policies"]["standard"] | changes
            document["tenants"][name] = {"policy": name, "suspended": False}
        document["tenants"]["suspended"] = {"policy": "standard", "suspended": True}
        # Through JSON, which is YAML: PyYAML would write what two policies share as an alias, which is refused.
        target.write_text(json.dumps(document))
        with keys.change(self._folder / ".jubako" / "keys.json") as records:
            for tenant in [*POLICIES, "suspended"]:
                self._keys[tenant], record = keys.new(tenant, now=datetime.now(UTC))
                records[record.id] = record
            self._keys["chat-only"], record = keys.new("default", now=datetime.now(UTC), scopes=[Scope.CHAT])
            records[record.id] = record
        (self._folder / "keys.jwks").write_bytes(identity_provider.key_set(self.pair.jwk()))

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://127.0.0.1:{self.port}/v1"

    def key(self, tenant: str = "default") -> str:
        """The key of a tenant."""
        return self._keys[tenant]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] == "http":
            self.attempts.append(f"{scope['method']} {scope['path']}")
        await self._application(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open and close the books in the loop that serves."""
        await receive()
        await self._budgets.open()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._budgets.close()
        await send({"type": "lifespan.shutdown.complete"})

    @contextmanager
    def occupied(self, tenant: str = "default", *, requests: int = 1) -> Iterator[None]:
        """Requests that stay for as long as the block runs: in the engine first, then in the queue.

        Their callers leave at its end, and are gone when it is over.
        """
        body = json.dumps({"messages": [{"role": "user", "content": "stay"}], "max_tokens": 4}).encode()
        opened: list[socket.socket] = []
        try:
            for count in range(1, requests + 1):
                opened.append(socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS))
                opened[-1].sendall(self._head(tenant, len(body)) + body)
                until(functools.partial(self._holds, count), "the request stays", SECONDS)
            del self.attempts[:]
            yield
        finally:
            for one in opened:
                one.close()
            until(lambda: self.life.in_flight == 0, "all have left", SECONDS)

    @contextmanager
    def uploading(self, tenant: str, size: int) -> Iterator[None]:
        """A body of `size` bytes of which none comes, for as long as the block runs."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as one:
            one.sendall(self._head(tenant, size))
            until(lambda: self.bodies.held == size, "the body has its room", SECONDS)
            yield
        until(lambda: self.bodies.held == 0, "the room is free again", SECONDS)

    def _head(self, tenant: str, size: int) -> bytes:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {self.key(tenant)}\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {size}\r\n\r\n".encode()

    def _holds(self, requests: int) -> bool:
        return len(self.engine.calls) + sum(self._admission.queue_depths.values()) >= requests


@contextmanager
def serving(wire: Wire) -> Iterator[Wire]:
    """Run the server on a free port, as BentoML runs its own."""
    config = uvicorn.Config(
        wire, log_config=None, http="httptools", loop="asyncio", lifespan="on", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire.port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            until(lambda: server.started or not thread.is_alive(), "the server has started", SECONDS)
            yield wire
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()
