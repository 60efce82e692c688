"""The composition root: settings and manifest into wired parts, and the order of start and end.

    arbiter   check(): settings, options, key, every file against the manifest; before the socket opens
    worker    start(): engine, smoke prompts, ready; then the watch
              on SIGTERM: unready, drain, engine closed, then the HTTP server's own shutdown
              on a fault: unready, callers told, engine killed, process ended with a message

Knows the processes; the rooms below do not.
"""

from __future__ import annotations

import asyncio
import gc
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
from types import FrameType
from typing import Any

from jubako import processes, settings, smoke, terminal
from jubako.assembly import Assembly, load_authenticator
from jubako.boundary.application import Application
from jubako.boundary.exchange import Exchange
from jubako.engine import options as engine_options
from jubako.engine.port import Engine
from jubako.engine.vllm.ahead import Beginning, Interpreter
from jubako.errors import StartupFault, Unavailable
from jubako.gate import demo
from jubako.life import Life, engine_lost, shutting_down
from jubako.release import catalogue
from jubako.sections import LifeSettings
from jubako.settings import ADDRESS_VARIABLE
from jubako.start_times import StartPhase, StartTimes
from jubako.telemetry import logs
from jubako.telemetry.metrics import REGISTRY, exposition
from jubako.vocabulary import Phase, Principal, Readiness

logger = logging.getLogger(__name__)

TELL_SECONDS = 15.0
"""For callers in flight to take the error that ends their request: at once, but on a machine that stalls."""
BOOKS_SECONDS = 25.0
"""For budgets, books and spans to be closed: four waits of five seconds at most, and a disk that takes its time."""
WATCH_EVERY_SECONDS = 0.5
YOUNG_OBJECTS = 20_000
"""New objects after which Python looks for garbage in cycles: a request has thousands, nearly none of them garbage. At
its default of 700, log-probabilities cost a sixth more."""
VERIFIED_VARIABLE = "JUBAKO_VERIFIED"
"""Set by the arbiter for the worker: the digest of the release whose files it verified."""
SAME_SIGNAL_SECONDS = 2.0
"""A signal that follows the first this soon is the same one, delivered again."""


def grace_seconds(life: LifeSettings) -> float:
    """How long after SIGTERM the process is gone, whatever hangs: an orchestrator must not kill it before."""
    return life.drain_seconds + 2 * life.close_seconds + 2 * TELL_SECONDS + BOOKS_SECONDS + processes.KILL_SECONDS


class Server:
    """One release served by one process. Made when the service module is imported, so it holds no secrets."""

    def __init__(self, root: Path) -> None:
        self._times = StartTimes.of_process(os.getpid(), os.environ)
        self._times.end(StartPhase.COMMAND)
        self.settings = settings.load(root)
        release = self.settings.server.release
        self.manifest = catalogue.load(self.settings.configuration, f"{release.name}/{release.version}")
        self._times.end(StartPhase.SETTINGS)
        self.application = Application(self._handle)
        self._assembly: Assembly | None = None
        self._opened = asyncio.Event()
        self._life: Life | None = None
        self._engine: Engine | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ending_since = 0.0
        self._settling: asyncio.Task[None] | None = None
        self._handlers: dict[int, Any] = {}

    @classmethod
    def load_or_exit(cls, root: Path) -> Server:
        """The server under `root`; a fault ends the process with its message and exit status 1."""
        try:
            return cls(root)
        except StartupFault as fault:
            terminal.exit_with(fault)

    # -- in the arbiter, before the socket opens

    def check(self) -> None:
        """Refuse the start unless everything that can be known now is right; raises `StartupFault`."""
        from jubako.release import bundle, verify

        # A worker that dies is an engine that died: the process has to end, so that an orchestrator sees it and
        # starts it again. BentoML respawns for ever unless it believes to be in a container.
        os.environ.setdefault("BENTOML_CONTAINERIZED", "1")
        engine_options.check(self.settings.engine_options, self.settings.profile.environment)
        self._check_release()
        load_authenticator(self.settings, self.manifest)
        verify.verify(self.manifest, bundle.model_root(self.manifest))
        os.environ[VERIFIED_VARIABLE] = self.manifest.digest
        self._times.end(StartPhase.VERIFICATION)
        self._times.pass_on(os.environ)

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
        sys.excepthook = terminal.tell_the_worker_ended
        logs.configure(self.settings.server.telemetry.logs)
        try:
            self.check()
        except StartupFault as fault:
            terminal.exit_with(fault)

    # -- in the worker

    async def start(self) -> None:
        """Begin the start and return, so that probes are answered meanwhile."""
        self._times.end(StartPhase.WORKER)
        logs.configure(self.settings.server.telemetry.logs)
        processes.die_with_parent()
        processes.leave_a_warden()
        self._life = Life()
        self._catch_signals()
        self._running = asyncio.create_task(self._run(self._life), name="server-run")

    async def _run(self, life: Life) -> None:
        limit: asyncio.Timeout | None = None
        try:
            self._require_what_was_verified()
            interpreter = self._begin_imports()
            assembly = self._assembly = await Assembly.open(self.settings, self.manifest, life)
            self._opened.set()
            async with asyncio.timeout(self.settings.server.life.start_seconds) as limit:
                life.doing("the engine is loading the model")
                engine = await self._start_engine(interpreter)
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
        assembly.serve(engine)
        # What is there now stays: no collection of garbage needs to look at it again, in the middle of all streams.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        gc.enable()
        if life.become_ready():
            self._times.end(StartPhase.SMOKE)
            assembly.metrics.started(self._times.seconds)
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

    def _begin_imports(self) -> Interpreter:
        """Set the environment that vLLM is imported in, and have the engine's process begin with its imports."""
        variables = {k: engine_options.environment_text(v) for k, v in self.settings.profile.environment.items()}
        # Ours is the limit of a start, with our words; vLLM's own would come first at ten minutes.
        variables["VLLM_ENGINE_READY_TIMEOUT_S"] = str(math.ceil(self.settings.server.life.start_seconds))
        variables |= logs.engine_environment(self.settings.server.telemetry.logs)
        os.environ.update(variables | engine_options.FIXED_ENVIRONMENT)
        # Imports leave next to no garbage, and looking for it takes a fifth of their time. On again at ready.
        gc.disable()
        return Interpreter()

    async def _start_engine(self, interpreter: Interpreter) -> Engine:
        engine = await asyncio.to_thread(self._make_engine, interpreter)
        self._engine = engine
        await engine.start()
        return engine

    def _make_engine(self, interpreter: Interpreter) -> Engine:
        """Import vLLM (seconds, hence in a thread) and describe the engine to it."""
        from jubako.engine.vllm.adapter import VllmEngine
        from jubako.release import bundle

        gc.freeze()
        self._times.end(StartPhase.ENGINE_IMPORTS)
        life = self.settings.server.life
        # The arbiter passes SIGTERM on to the engine's process at the same moment as to this one. It must outlive the
        # drain here, or it would abort the streams that the drain waits for.
        timeout = math.ceil(life.drain_seconds + TELL_SECONDS + life.close_seconds)
        return VllmEngine(
            bundle.served(self.manifest),
            self.settings.engine_options,
            self.settings.server.grammar,
            timeout,
            Beginning(self._times, interpreter),
        )

    def _announce(self) -> None:
        release = self.settings.server.release
        logger.info(
            "ready: release %s/%s, digest %s, after %s",
            *(release.name, release.version, self.manifest.digest, self._times),
        )
        address = os.environ.get(ADDRESS_VARIABLE)
        if address:
            key_file = demo.demo_key_file(self.settings.root)
            message = terminal.ready_message(address, key_file, self.manifest.aliases[0])
            # A reader who left must not end the watch that follows, nor one who takes nothing hold it up.
            threading.Thread(target=_print, args=(message,), name="ready-message", daemon=True).start()

    # -- probes and requests

    @property
    def readiness(self) -> Readiness:
        """Whether to send traffic here."""
        return self._life.readiness if self._life else Readiness(Phase.STARTING, "the worker is starting")

    async def authenticate(self, authorization: str | None) -> Principal:
        """Who asks for a surface that is not the API; raises a `Refusal`."""
        if self._assembly is None:
            raise Unavailable("The server is starting.", code="not_ready")
        return await self._assembly.pipeline.authenticator.authenticate(authorization)

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """All metrics as a scraper that sends `accept` wants them, and their content type."""
        return await asyncio.to_thread(exposition, REGISTRY, accept)

    async def _handle(self, exchange: Exchange) -> None:
        # What cannot be put on record is not answered: not in the first second, and not after the last.
        await self._opened.wait()
        if self._assembly is None or self._assembly.closed:
            await exchange.gone()
        else:
            await self._assembly.pipeline(exchange)

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
                self._settling = asyncio.create_task(self._settle_in_time(life), name="server-settle")
        elif life.readiness.phase is Phase.STARTING:
            # The engine's start cannot be interrupted from within; nobody is being served.
            logger.info("stopped while starting")
            processes.exit_now(0)
        else:
            self._ending_since = time.monotonic()
            self._ending = asyncio.create_task(self._end(life, signum), name="server-end")

    async def _settle_in_time(self, life: Life) -> None:
        """Before the process is ended: a request that does not end in time is booked and on record all the same."""
        await life.settled(TELL_SECONDS / 2)
        if self._assembly is not None:
            await self._assembly.pipeline.settled()

    async def _end(self, life: Life, signum: int) -> None:
        limits = self.settings.server.life
        processes.exit_at_latest(grace_seconds(limits) - processes.KILL_SECONDS, 1)
        if self._engine is not None:
            self._engine.end_expected()
        life.begin_draining()
        if self._assembly is not None:
            self._assembly.pipeline.drain(shutting_down)
        await life.drain(limits.drain_seconds, TELL_SECONDS)
        await self._close_engine(limits.close_seconds)
        # The books stay open until the HTTP server has answered whoever still comes; it calls `stop` then.
        self._leave(signum)

    async def _fail(self, life: Life, reason: str) -> None:
        """The one way out for every fault of a running worker."""
        life.fail(reason)
        processes.exit_at_latest(TELL_SECONDS + BOOKS_SECONDS + 2 * self.settings.server.life.close_seconds, 1)
        logger.critical("%s", reason)
        life.interrupt_all(engine_lost)
        await life.settled(TELL_SECONDS)
        await self._close_engine(0)
        await self._close_assembly()
        processes.exit_now(1)

    async def stop(self) -> None:
        """Close the books, then the engine; nothing happens if they are closed."""
        await self._close_assembly()
        await self._close_engine(self.settings.server.life.close_seconds)

    async def _close_engine(self, timeout_seconds: float) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close(timeout_seconds)

    async def _close_assembly(self) -> None:
        if self._assembly is not None:
            await self._assembly.close()

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


def _print(message: str) -> None:
    with suppress(OSError):
        os.write(sys.stdout.fileno(), message.encode())  # takes no lock that the end of the process would wait for
