"""The composition root: settings and manifest into wired parts, and the order of start and end.

    arbiter   check(): settings, options, key, every file against the manifest; before the socket opens
    worker    start(): engine, smoke prompts, ready; then the watch
              on SIGTERM: unready, drain, engine closed, then the HTTP server's own shutdown
              on a fault: unready, callers told, engine killed, process ended with a message

Knows the processes; the rooms below do not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from jubako import processes, settings, smoke
from jubako.boundary.application import Application
from jubako.boundary.exchange import Exchange
from jubako.engine import options as engine_options
from jubako.engine.port import Engine
from jubako.errors import StartupFault, Unavailable
from jubako.gate import demo
from jubako.gate.admission.admission import Admission
from jubako.gate.authentication import Authenticator
from jubako.gate.budgets.opening import budgets
from jubako.gate.budgets.port import Budgets
from jubako.life import Life, engine_lost, shutting_down
from jubako.pipeline import Pipeline
from jubako.release import catalogue
from jubako.settings import ADDRESS_VARIABLE
from jubako.telemetry import logs
from jubako.vocabulary import Phase, Principal, Readiness

logger = logging.getLogger(__name__)

TELL_SECONDS = 5.0
"""For callers in flight to take the error that ends their request."""
WATCH_EVERY_SECONDS = 0.5
VERIFIED_VARIABLE = "JUBAKO_VERIFIED"
"""Set by the arbiter for the worker: the digest of the release whose files it verified."""
SAME_SIGNAL_SECONDS = 2.0
"""A signal that follows the first this soon is the same one, delivered again."""


class Server:
    """One release served by one process. Made when the service module is imported, so it holds no secrets."""

    def __init__(self, root: Path) -> None:
        self.settings = settings.load(root)
        release = self.settings.server.release
        self.manifest = catalogue.load(self.settings.configuration, f"{release.name}/{release.version}")
        self.application = Application(self._handle)
        self._pipeline: Pipeline | None = None
        self._life: Life | None = None
        self._engine: Engine | None = None
        self._budgets: Budgets | None = None
        self._watching: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ending_since = 0.0
        self._handlers: dict[int, Any] = {}

    @classmethod
    def load_or_exit(cls, root: Path) -> Server:
        """The server under `root`; a fault ends the process with its message and exit status 1."""
        try:
            return cls(root)
        except StartupFault as fault:
            exit_with(fault)

    # -- in the arbiter, before the socket opens

    def check(self) -> None:
        """Refuse the start unless everything that can be known now is right; raises `StartupFault`."""
        from jubako.release import bundle, verify

        # A worker that dies is an engine that died: the process has to end, so that an orchestrator sees it and
        # starts it again. BentoML respawns for ever unless it believes to be in a container.
        os.environ.setdefault("BENTOML_CONTAINERIZED", "1")
        engine_options.check(self.settings.engine_options, self.settings.profile.environment)
        self._check_release()
        self._load_authenticator()
        verify.verify(self.manifest, bundle.model_root(self.manifest))
        os.environ[VERIFIED_VARIABLE] = self.manifest.digest

    def _check_release(self) -> None:
        """What the manifest says beyond its files: may it be served, by this engine, and can it be shown right."""
        manifest = self.manifest
        if manifest.licence.decision == "refused":
            raise StartupFault(f"release {manifest.reference}: its licence was refused: {manifest.licence.reason}")
        if not manifest.smoke:
            raise StartupFault(f"release {manifest.reference}: it has no smoke prompts; make a version that has some")
        engine = engine_options.installed_version()
        if engine != manifest.engine.version:
            raise StartupFault(
                f"release {manifest.reference}: it is for vLLM {manifest.engine.version}, and {engine} is installed; "
                "install that version, or make a release version for this one"
            )
        tested = manifest.engine.options.get(self.settings.server.engine.profile)
        if tested != self.settings.engine_digest:
            sys.stderr.write("jubako: the engine options are not those that the release was made with\n")

    def check_or_exit(self) -> None:
        """`check`, ending the process with its message and exit status 1 on a fault."""
        sys.excepthook = _tell_the_worker_ended
        try:
            self.check()
        except StartupFault as fault:
            exit_with(fault)

    # -- in the worker

    async def start(self) -> None:
        """Begin the start and return, so that probes are answered meanwhile."""
        logs.configure()
        processes.die_with_parent()
        processes.leave_a_warden()
        self._life = Life()
        self._catch_signals()
        self._running = asyncio.create_task(self._run(self._life), name="server-run")

    async def _run(self, life: Life) -> None:
        limit: asyncio.Timeout | None = None
        try:
            self._require_what_was_verified()
            pipeline = self._pipeline = await self._open_gate(life)
            async with asyncio.timeout(self.settings.server.life.start_seconds) as limit:
                life.doing("the engine is loading the model")
                engine = await self._start_engine()
                life.doing("the engine is answering the smoke prompts")
                limits = self.settings.server.limits.limits
                await smoke.run(engine, self.manifest.smoke, self.manifest.aliases[0], limits)
        except (StartupFault, smoke.SmokeFailure) as fault:
            await self._fail(life, str(fault))
            return
        except Exception as error:  # noqa: BLE001 - vLLM's start fails in many ways; its own log has the cause
            reason = f"the engine did not start: {type(error).__name__}: {error}"
            if limit is not None and limit.expired():
                reason = f"not ready within life.start_seconds ({self.settings.server.life.start_seconds:g})"
            await self._fail(life, reason)
            return
        pipeline.serve(engine, Admission(self.settings.server.admission, ceiling=engine.ceiling))
        if life.become_ready():
            self._announce()
            engine.warm()
        reason = await life.watch(
            engine.vital_signs,
            stall_seconds=self.settings.server.life.stall_seconds,
            every_seconds=WATCH_EVERY_SECONDS,
        )
        if self._ending is None:
            await self._fail(life, reason)

    def _require_what_was_verified(self) -> None:
        """The files on disk may have changed since the arbiter read them; what it verified is what is served."""
        verified = os.environ.get(VERIFIED_VARIABLE)
        if verified is not None and verified != self.manifest.digest:
            raise StartupFault(
                f"the manifest changed during the start: verified {verified}, found {self.manifest.digest}"
            )

    def _load_authenticator(self) -> Authenticator:
        server = self.settings.server
        served = frozenset({*self.manifest.aliases, *(adapter.alias for adapter in self.manifest.adapters)})
        return Authenticator.load(
            server.authentication, self.settings.root, server.limits.limits, server.deadline.seconds, served
        )

    async def _open_gate(self, life: Life) -> Pipeline:
        """Everything that a request passes before the engine; it refuses requests with a reason while there is none."""
        authenticator = await asyncio.to_thread(self._load_authenticator)
        self._budgets = budgets(self.settings.server.budgets, self.settings.root)
        await self._budgets.open()
        self._watching = asyncio.create_task(authenticator.watch(), name="authentication-watch")
        return Pipeline(authenticator, life, self._budgets, self.settings.server.stream)

    async def _start_engine(self) -> Engine:
        engine = await asyncio.to_thread(self._make_engine)
        self._engine = engine
        await engine.start()
        return engine

    def _make_engine(self) -> Engine:
        """Import vLLM (seconds, hence in a thread) and describe the engine to it."""
        variables = {k: engine_options.environment_text(v) for k, v in self.settings.profile.environment.items()}
        # Ours is the limit of a start, with our words; vLLM's own would come first at ten minutes.
        variables["VLLM_ENGINE_READY_TIMEOUT_S"] = str(math.ceil(self.settings.server.life.start_seconds))
        os.environ.update(variables | engine_options.FIXED_ENVIRONMENT)
        from jubako.engine.vllm.adapter import VllmEngine
        from jubako.release import bundle

        life = self.settings.server.life
        # The arbiter passes SIGTERM on to the engine's process at the same moment as to this one. It must outlive the
        # drain here, or it would abort the streams that the drain waits for.
        timeout = math.ceil(life.drain_seconds + TELL_SECONDS + life.close_seconds)
        return VllmEngine(
            bundle.served(self.manifest), self.settings.engine_options, self.settings.server.grammar, timeout
        )

    def _announce(self) -> None:
        release = self.settings.server.release
        logger.info("ready: release %s/%s, digest %s", release.name, release.version, self.manifest.digest)
        address = os.environ.get(ADDRESS_VARIABLE)
        if address:
            key_file = demo.demo_key_file(self.settings.root)
            sys.stdout.write(ready_message(address, key_file, self.manifest.aliases[0]))
            sys.stdout.flush()

    # -- probes and requests

    @property
    def readiness(self) -> Readiness:
        """Whether to send traffic here."""
        return self._life.readiness if self._life else Readiness(Phase.STARTING, "the worker is starting")

    async def authenticate(self, authorization: str | None) -> Principal:
        """Who asks for a surface that is not the API; raises a `Refusal`."""
        if self._pipeline is None:
            raise Unavailable("The server is starting.", code="not_ready")
        return await self._pipeline.authenticator.authenticate(authorization)

    async def _handle(self, exchange: Exchange) -> None:
        if self._pipeline is None:
            await exchange.refuse(Unavailable("The model is not ready yet.", code="not_ready"))
        else:
            await self._pipeline(exchange)

    # -- the end

    def _catch_signals(self) -> None:
        """Take SIGTERM and SIGINT from the HTTP server: it would close its socket first and leave callers hanging."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()

        def handle(signum: int, _: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._on_signal, signum)

        for signum in (signal.SIGTERM, signal.SIGINT):
            self._handlers[signum] = signal.signal(signum, handle)

    def _on_signal(self, signum: int) -> None:
        life = self._require_life()
        if life.readiness.phase is Phase.FAILED:
            return  # the end is under way, with a status that an orchestrator acts on
        if self._ending is not None:
            # The kernel tells of the arbiter's death once for each of its threads: those are one signal.
            if time.monotonic() - self._ending_since >= SAME_SIGNAL_SECONDS:
                logger.warning("second signal: ending now")
                life.interrupt_all(shutting_down)
                processes.exit_at_latest(TELL_SECONDS, 0)
        elif life.readiness.phase is Phase.STARTING:
            # The engine's start cannot be interrupted from within; nobody is being served.
            logger.info("stopped while starting")
            processes.exit_now(0)
        else:
            self._ending_since = time.monotonic()
            self._ending = asyncio.create_task(self._end(life, signum), name="server-end")

    async def _end(self, life: Life, signum: int) -> None:
        limits = self.settings.server.life
        processes.exit_at_latest(limits.drain_seconds + 2 * TELL_SECONDS + 2 * limits.close_seconds, 1)
        if self._engine is not None:
            self._engine.end_expected()
        life.begin_draining()
        if self._pipeline is not None:
            self._pipeline.drain(shutting_down)
        await life.drain(limits.drain_seconds, TELL_SECONDS)
        await self.stop()
        self._leave(signum)

    async def _fail(self, life: Life, reason: str) -> None:
        """The one way out for every fault of a running worker."""
        life.fail(reason)
        processes.exit_at_latest(TELL_SECONDS + 2 * self.settings.server.life.close_seconds, 1)
        logger.critical("%s", reason)
        life.interrupt_all(engine_lost)
        await life.settled(TELL_SECONDS)
        await self._close_gate()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close(0)
        processes.exit_now(1)

    async def stop(self) -> None:
        """Close the books of the gate, then the engine; nothing happens if they are closed."""
        await self._close_gate()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close(self.settings.server.life.close_seconds)

    async def _close_gate(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        held, self._budgets = self._budgets, None
        if held is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL_SECONDS):
                    if self._pipeline is not None:
                        await self._pipeline.settled()
                    await held.close()

    def _leave(self, signum: int) -> None:
        """Let the HTTP server do its own shutdown."""
        handler: Callable[[int, None], object] | None = self._handlers.get(signum)
        if callable(handler):
            handler(signum, None)
        else:
            processes.exit_now(0)

    def _require_life(self) -> Life:
        if self._life is None:
            raise RuntimeError("the server has not been started")
        return self._life


def _tell_the_worker_ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In the arbiter: one line where BentoML's supervisor would print a traceback of its own frames."""
    if isinstance(error, RuntimeError) and "No active process" in str(error):
        sys.stderr.write("jubako: the worker has ended, and the server with it. The reason is above.\n")
    else:
        sys.__excepthook__(kind, error, trace)


def ready_message(address: str, key_file: Path, alias: str) -> str:
    """What to try first."""
    demo_key = key_file.is_file()
    key = f"An API key is in {key_file}" if demo_key else "Make an API key with: jubako keys create TENANT"
    bearer = f"$(cat {key_file})" if demo_key else "YOUR_KEY"
    return f"""
Jubako is ready on {address}
{key}. Try:

  curl {address}/v1/chat/completions \\
    -H "Authorization: Bearer {bearer}" -H "Content-Type: application/json" \\
    -d '{{"model": "{alias}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""


def exit_with(fault: StartupFault) -> NoReturn:
    """End the process with the fault's message and exit status 1."""
    sys.stderr.write(f"jubako: cannot start:\n{fault}\n")
    sys.stderr.flush()
    raise SystemExit(1)
