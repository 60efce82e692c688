"""A caller without a network: one ASGI request and all that is sent in reply, each side at the test's pace.

It knows ASGI and the pipeline's parts; it knows nothing of a model.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from jubako.accounts import Accounts
from jubako.books.audit import AuditFault
from jubako.boundary.application import Application
from jubako.boundary.bodies import Bodies
from jubako.engine.port import Engine
from jubako.errors import Refusal, Unauthenticated, Unavailable
from jubako.gate.admission.admission import Admission
from jubako.life import Life
from jubako.pipeline import Pipeline
from jubako.sections import AdmissionSettings, StreamSettings, TracingSettings
from jubako.telemetry.metrics import Metrics
from jubako.telemetry.tracing import Tracing
from jubako.vocabulary import Account, Budget, Call, Demand, Limits, Policy, Principal, Rates, Route, Scope, Step
from tests.boundary_limits import limited

KEY = "a-key-for-tests-only"
CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
"""The least that a chat request says."""
LIMITS = limited(body_bytes=2048, body_seconds=0.2)
STREAM = StreamSettings(keep_alive_seconds=60, stalled_reader_seconds=60)
ADMISSION = AdmissionSettings(
    time_per_output_token_seconds=1, queue_requests=100, queue_tokens=1_000_000, ageing_seconds=60
)
BODIES = 1 << 24
"""Room for more bodies than any test sends."""
SECONDS = 60.0
"""No reply of a scripted engine takes this long."""


def policy(limits: Limits = LIMITS, **changes: Any) -> Policy:
    """What everybody may do here."""
    lenient = Policy(
        models=None,
        scopes=frozenset({Scope.MODELS, Scope.CHAT, Scope.COMPLETIONS}),
        weight=1,
        priority=1,
        deadline_seconds=300,
        queue_seconds=300,
        limits=limits,
        tenant_budget=Budget(),
        key_budget=Budget(),
    )
    return replace(lenient, **changes)


def call_of(route: Route, body: Mapping[str, Any]) -> Call:
    """A call as the pipeline makes it, for tests that start behind the pipeline."""
    given = policy()
    demand = Demand("scripted", prompts=1, choices=1, prompt_tokens=1, output_tokens=16, grammar=False)
    return Call(route, "id", body, Principal("tenant", "key", given.scopes, given), demand, cache_salt="salt")


class OneKey:
    """Knows one key; whoever has it is the tenant `default` under the policy that the test gives."""

    def __init__(self, given: Policy) -> None:
        self.principal = Principal("default", "the-key", given.scopes, given)

    async def authenticate(self, authorization: str | None) -> Principal:
        """As the real one does."""
        if authorization is None:
            raise Unauthenticated("No API key was given.", code="missing_api_key")
        if authorization != f"Bearer {KEY}":
            raise Unauthenticated("The API key is not valid.")
        return self.principal


class NoBudgets:
    """Nothing is counted, and everything that is asked of it is remembered."""

    def __init__(self) -> None:
        self.reserved: list[int] = []
        self.amended: list[int] = []
        self.ended: list[int | None] = []
        """Tokens of each settlement; None for a release."""
        self.rates = Rates()
        self.refusal: Refusal | None = None

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def reserve(self, principal: Principal, tokens: int) -> NoBudgets:
        """Grant it, unless the test said otherwise."""
        if self.refusal is not None:
            raise self.refusal
        self.reserved.append(tokens)
        return self

    async def amend(self, tokens: int) -> None:
        """Remember it."""
        self.amended.append(tokens)

    def end(self, tokens: int | None) -> Coroutine[Any, Any, None] | None:
        """Remember it."""
        self.ended.append(tokens)
        return None


class NoBooks:
    """Every account is remembered, and nothing is written. `full` is what a full disk does."""

    def __init__(self) -> None:
        self.accounts: list[Account] = []
        self.full = False
        self.refuses = False
        self.on_record: Callable[[], object] = lambda: None

    def record(self, account: Account) -> None:
        """Remember it."""
        if self.full:
            raise AuditFault("the disk is full")
        self.on_record()
        self.accounts.append(account)

    def require_healthy(self) -> None:
        """As the real ones do."""
        if self.refuses:
            raise Unavailable("The server cannot keep its books now.", code="not_ready")


TRACING = TracingSettings(endpoint=None, protocol="http", ratio=1, headers_file=None)


def accounts(books: Any) -> Accounts:
    """Where ends are told, around `books`."""
    metrics = Metrics(CollectorRegistry(), ["scripted"], release="scripted/1", digest="d" * 64)
    return Accounts(books, metrics, Tracing(TRACING, Path(), release="d" * 64), "d" * 64, frozenset())


def ready_pipeline(
    engine: Engine,
    *,
    given: Policy | None = None,
    stream: StreamSettings = STREAM,
    life: Life | None = None,
    budgets: NoBudgets | None = None,
    admission: AdmissionSettings = ADMISSION,
    books: NoBooks | None = None,
    bodies: Bodies | None = None,
) -> Pipeline:
    """A pipeline around `engine` that takes requests; a `life` that is given stays in its phase."""
    if life is None:
        life = Life()
        life.become_ready()
    authenticator: Any = OneKey(given or policy())
    pipeline = Pipeline(
        authenticator, life, budgets or NoBudgets(), accounts(books or NoBooks()), stream, bodies or Bodies(BODIES)
    )
    queue = Admission(admission, ceiling=engine.ceiling)
    for running in (2, 4, 8, 16, 32):
        for _ in range(5):  # an engine whose pace was seen to hold, so that what a test sends is let in at once
            queue.on_step(Step(time.monotonic(), 0.01, running, 0, running))
    pipeline.serve(engine, queue)
    return pipeline


class Caller:
    """One request. The body is sent as a whole unless the test sends it, and whatever is sent in reply is taken."""

    def __init__(
        self,
        body: Any = None,
        *,
        path: str = CHAT,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body_follows: bool = False,
    ) -> None:
        given = {"authorization": f"Bearer {KEY}", "content-type": "application/json"} | dict(headers or {})
        self.scope: MutableMapping[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        }
        self.inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.sent: list[MutableMapping[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._gone = False
        self._moved = asyncio.Event()
        if not body_follows:
            self.send_body(body if isinstance(body, bytes) else json.dumps(ASKED if body is None else body).encode())

    def send_body(self, part: bytes, *, more: bool = False) -> None:
        """Send one part of the body."""
        self.inbox.put_nowait({"type": "http.request", "body": part, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self._gone = True
        self.reads.set()
        self.inbox.put_nowait({"type": "http.disconnect"})

    async def call(self, pipeline: Pipeline) -> Caller:
        """Make the request and wait for its end."""
        async with asyncio.timeout(SECONDS):
            await Application(pipeline)(self.scope, self._receive, self._send)
        return self

    def begin(self, pipeline: Pipeline) -> asyncio.Task[Caller]:
        """Make the request without waiting."""
        return asyncio.create_task(self.call(pipeline))

    async def _receive(self) -> MutableMapping[str, Any]:
        return await self.inbox.get()

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        if not self._gone:
            self.sent.append(message)
            self._moved.set()

    async def received(self, text: bytes) -> None:
        """Wait until `text` is in the reply."""
        async with asyncio.timeout(SECONDS):
            while text not in self.body:
                self._moved.clear()
                await self._moved.wait()

    @property
    def status(self) -> int:
        """The status of the reply; zero if there is none."""
        return int(self.sent[0]["status"]) if self.sent else 0

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the reply."""
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """The body of the reply so far."""
        return b"".join(message["body"] for message in self.sent if message["type"] == "http.response.body")

    @property
    def ended(self) -> bool:
        """Whether the reply is whole."""
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def error(self) -> dict[str, Any]:
        """The error object: of the whole reply, or of the stream's last event."""
        text = self.body
        if text.startswith((b"data:", b":")):
            text = text.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")
        error: dict[str, Any] = json.loads(text)["error"]
        return error


async def ended(task: asyncio.Task[Any]) -> None:
    """Wait for a task, however it ends."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, SECONDS)
