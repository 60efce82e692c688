"""What stands around the engine, of one process: opened together at the start, closed in order at the end.

Owns the authenticator, the budgets, the books, the metrics, the spans, and the pipeline that is made of them. Knows
nothing of processes, or of how an engine is started.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from jubako.accounts import Accounts
from jubako.books.books import Books
from jubako.boundary.bodies import Bodies
from jubako.engine.port import Engine
from jubako.gate.admission.admission import Admission
from jubako.gate.authentication import Authenticator
from jubako.gate.budgets.opening import budgets
from jubako.gate.budgets.port import Budgets
from jubako.life import Life
from jubako.pipeline import Pipeline
from jubako.release.manifest import Manifest
from jubako.settings import Settings
from jubako.telemetry.metrics import REGISTRY, Metrics
from jubako.telemetry.sink import dropped_lines
from jubako.telemetry.tracing import Tracing

CLOSE_SECONDS = 5.0
"""For the budgets to have every settlement, and for spans that are left to be sent."""


@dataclass(slots=True)
class Assembly:
    """Made by `open`; requests are answered with an engine from `serve` on."""

    settings: Settings
    life: Life
    pipeline: Pipeline
    budgets: Budgets
    books: Books
    metrics: Metrics
    tracing: Tracing
    watching: asyncio.Task[None]
    closed: bool = False
    """From the beginning of `close` on: what comes then cannot be put on record."""

    @classmethod
    async def open(cls, settings: Settings, manifest: Manifest, life: Life) -> Assembly:
        """Everything that a request passes before the engine; it refuses requests with a reason while there is none.

        Raises `StartupFault`. What was opened by then is left to the end of the process, which nothing of it minds.
        """
        server = settings.server
        authenticator, books, tracing = await asyncio.gather(
            asyncio.to_thread(load_authenticator, settings, manifest),
            asyncio.to_thread(Books.open, server.books, settings.root, manifest.digest),
            asyncio.to_thread(Tracing, server.telemetry.tracing, settings.root, release=manifest.digest),
        )
        held = budgets(server.budgets, settings.root)
        await held.open()
        adapters = frozenset(adapter.alias for adapter in manifest.adapters)
        metrics = Metrics(REGISTRY, served_names(manifest), release=manifest.reference, digest=manifest.digest)
        accounts = Accounts(books, metrics, tracing, manifest.digest, adapters)
        pipeline = Pipeline(authenticator, life, held, accounts, server.stream, Bodies(server.bodies.held_bytes))
        watching = asyncio.create_task(authenticator.watch(), name="authentication-watch")
        opened = cls(settings, life, pipeline, held, books, metrics, tracing, watching)
        opened._observe_itself()
        return opened

    def serve(self, engine: Engine) -> None:
        """Answer with `engine` from now on, behind a queue of its own."""
        admission = Admission(self.settings.server.admission, ceiling=engine.ceiling)
        self.pipeline.serve(engine, admission)
        observe = self.metrics.observe
        observe("jubako_queue_depth", lambda: admission.queue_depths)
        observe("jubako_queue_tokens", lambda: admission.queue_tokens)
        observe("jubako_admission_limit_sequences", lambda: admission.limit)
        observe("jubako_running_sequences", lambda: admission.running)
        observe("jubako_engine_step_age_seconds", lambda: _step_age_seconds(engine))

    def _observe_itself(self) -> None:
        observe, life, books, tracing = self.metrics.observe, self.life, self.books, self.tracing
        bodies = self.pipeline.bodies
        observe("jubako_requests_in_flight", lambda: life.in_flight)
        observe("jubako_request_body_held_bytes", lambda: bodies.held)
        observe("jubako_ready", lambda: life.readiness.ready)
        observe("jubako_ledger_pending_records", lambda: books.lag)
        observe("jubako_ledger_lag_seconds", lambda: books.behind_seconds)
        observe("jubako_audit_healthy", lambda: books.healthy)
        observe("jubako_audit_unrecorded_total", lambda: books.unrecorded)
        observe("jubako_spans_dropped_total", lambda: tracing.dropped_spans)
        observe("jubako_log_lines_dropped_total", dropped_lines)

    async def close(self) -> None:
        """Have every settlement and every account where it belongs, those of requests that are just ending included."""
        if self.closed:
            return
        self.closed = True
        self.watching.cancel()
        await self.life.settled(CLOSE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.pipeline.settled()
                await self.budgets.close()
        await asyncio.gather(self.books.close(), asyncio.to_thread(self.tracing.close, CLOSE_SECONDS))


def served_names(manifest: Manifest) -> frozenset[str]:
    """Every name that the release answers to, adapters included."""
    return frozenset({*manifest.aliases, *(adapter.alias for adapter in manifest.adapters)})


def load_authenticator(settings: Settings, manifest: Manifest) -> Authenticator:
    """Keys, tenants and policies as they are now; raises `StartupFault`."""
    server = settings.server
    return Authenticator.load(
        server.authentication, settings.root, server.limits.limits, server.deadline.seconds, served_names(manifest)
    )


def _step_age_seconds(engine: Engine) -> float:
    signs = engine.vital_signs()
    return max(time.monotonic() - signs.last_step_at, 0.0) if signs.unfinished else 0.0
