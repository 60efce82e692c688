"""One serving process as Jubako runs it, in front of an engine that is somewhere else: for what is measured of it.

All of `Assembly` is there and open: keys, policies, budgets, the queue, books, metrics. Two ports answer: one with
vLLM's front end behind it, and one with an engine that says a fixed reply, so that what is left is Jubako's own.
A parent talks to it in lines of JSON: it writes commands to standard input and reads what came of each.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import uvicorn
import uvloop

from jubako import settings
from jubako.assembly import Assembly
from jubako.boundary.application import Application
from jubako.engine import options as engine_options
from jubako.engine.port import Engine, OnPrompt
from jubako.gate.admission.admission import Admission
from jubako.life import Life
from jubako.pipeline import Pipeline
from jubako.release import bundle, catalogue
from jubako.settings import Settings
from jubako.telemetry import logs
from jubako.telemetry.metrics import REGISTRY, exposition
from jubako.vocabulary import Call, Document, Reply, Step
from tests.bench.speed import kernel
from tests.scripted_engine import ScriptedEngine

SEQUENCES = 1024
"""More than any window has at once: how many run is not what is measured here."""
CHECK_SECONDS = 0.05
Command = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Place:
    """What the process is told at its start."""

    project: str
    addresses: Mapping[str, str]
    """Of the engine, for this front end."""
    clients: int
    client: int


class FixedEngine(ScriptedEngine):
    """Says one token at once, and counts it."""

    def __init__(self, alias: str) -> None:
        super().__init__(None)
        self._alias = alias
        usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
        self._reply = Document(json.dumps({"choices": [], "usage": usage}, separators=(",", ":")).encode())

    @property
    def names(self) -> tuple[str, ...]:
        """The release's name, so that it is counted as it is in life."""
        return (self._alias,)

    async def answer(
        self, call: Call, on_prompt: OnPrompt | None = None, on_generated: Callable[[], None] | None = None
    ) -> Reply:
        """One token."""
        call.usage.prompt_tokens = 4
        if on_prompt is not None:
            await on_prompt(4)
        call.usage.generated_tokens, call.usage.first_token_at = 1, time.monotonic()
        return self._reply


@contextmanager
def attached(place: Place) -> Iterator[None]:
    """Within the block vLLM's client goes to the engine at the place's addresses, and starts none."""
    from vllm.v1.engine.core_client import EngineCoreClient

    make = EngineCoreClient.make_async_mp_client
    more = {"client_addresses": place.addresses, "client_count": place.clients, "client_index": place.client}
    with mock.patch.object(EngineCoreClient, "make_async_mp_client", staticmethod(lambda **own: make(**own | more))):
        yield


class Serving:
    """The process: its parts, and the commands it takes."""

    def __init__(self, opened: Assembly, ports: Sequence[int]) -> None:
        self._opened = opened
        self._ports = ports
        self.commands: dict[str, Command] = {
            "where": self.where,
            "cpu": self.cpu,
            "level": self.level,
            "scrape": self.scrape,
            "known": self.known,
        }

    async def where(self) -> dict[str, Any]:
        """The ports: vLLM's front end, the fixed reply."""
        return {"whole": self._ports[0], "own": self._ports[1]}

    async def cpu(self) -> dict[str, Any]:
        """Processor time so far, all threads."""
        return {"cpu_seconds": time.process_time(), "peak_bytes": kernel.peak_bytes(os.getpid())}

    async def level(self) -> dict[str, Any]:
        """Wait until the ledger has everything: its thread's time belongs to the requests it books."""
        while self._opened.books.lag:
            await asyncio.sleep(CHECK_SECONDS)
        return await self.cpu()

    async def scrape(self) -> dict[str, Any]:
        """The metrics page as Prometheus asks for it."""
        begun, cpu = time.perf_counter(), time.process_time()
        text, _ = await asyncio.to_thread(exposition, REGISTRY, "application/openmetrics-text; version=1.0.0")
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        return {"bytes": len(text), "seconds": seconds, "cpu_seconds": cpu, "lines": text.count(b"\n")}

    async def known(self) -> dict[str, Any]:
        """How many tenants and keys are in force."""
        authenticator: Any = self._opened.pipeline.authenticator
        return {"tenants": len(authenticator._state.tenants), "keys": len(authenticator._state.keys)}


def _prove(admission: Admission) -> None:
    """The queue lets twice as many run as it has seen at work: show it work."""
    running = 2
    while running <= SEQUENCES:
        for _ in range(5):
            admission.on_step(Step(time.monotonic(), 0.01, running, 0, running))
        running *= 2


async def _engine(place: Place, loaded: Settings) -> Engine:
    variables = {name: engine_options.environment_text(one) for name, one in loaded.profile.environment.items()}
    os.environ.update(variables | engine_options.FIXED_ENVIRONMENT)
    from jubako.engine.vllm.adapter import VllmEngine

    served = bundle.served(_manifest(loaded))
    engine = VllmEngine(served, loaded.engine_options | {"max_num_seqs": SEQUENCES}, loaded.server.grammar, 5)
    with attached(place):
        await engine.start()
    return engine


def _manifest(loaded: Settings) -> Any:
    release = loaded.server.release
    return catalogue.load(loaded.configuration, f"{release.name}/{release.version}")


def _listen(pipeline: Pipeline) -> tuple[uvicorn.Server, socket.socket]:
    """As BentoML runs it: uvicorn with httptools on uvloop, no access log."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=SEQUENCES)
    config = uvicorn.Config(Application(pipeline), log_config=None, access_log=False, lifespan="off", http="httptools")
    return uvicorn.Server(config), listener


async def serve(place: Place, answers: int) -> None:
    """Until standard input ends."""
    loaded = settings.load(Path(place.project))
    logs.configure(loaded.server.telemetry.logs)
    life = Life()
    opened = await Assembly.open(loaded, _manifest(loaded), life)
    opened.serve(await _engine(place, loaded))
    _prove(opened.pipeline.admission)
    parts = opened.pipeline
    own = Pipeline(parts.authenticator, life, parts.budgets, parts.accounts, parts.stream, parts.bodies)
    fixed = FixedEngine(parts.engine.names[0])
    own.serve(fixed, Admission(loaded.server.admission, ceiling=SEQUENCES))
    _prove(own.admission)
    listening = [_listen(parts), _listen(own)]
    tasks = [asyncio.create_task(server.serve(sockets=[listener])) for server, listener in listening]
    gc.collect()
    gc.freeze()  # as the server does when it is ready
    life.become_ready()
    await _talk(Serving(opened, [listener.getsockname()[1] for _, listener in listening]).commands, answers)
    for server, _ in listening:
        server.should_exit = True
    await asyncio.gather(*tasks)
    await opened.close()
    await parts.engine.close(1)


async def _talk(commands: Mapping[str, Command], answers: int) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        found = await commands[line.decode().strip()]()
        os.write(answers, json.dumps(found).encode() + b"\n")


class Child:
    """One such process, from its parent's side."""

    def __init__(self, place: Place, log: Path, settings: Mapping[str, str] | None = None) -> None:
        self._log = log
        environment = os.environ | {
            "PYTHONHASHSEED": "0",
            "JUBAKO__ADMISSION__TIME_PER_OUTPUT_TOKEN_SECONDS": "60",
            "JUBAKO__TELEMETRY__LOGS__FORMAT": "json",
            **(settings or {}),
        }
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.serving"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
            )
        self._write(json.dumps(asdict(place)))

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and wait for what comes of it; the first answer takes as long as the start."""
        self._write(command)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a serving process ended:\n{self._log.read_text(errors='replace')[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Let it end by itself; kill it if it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except Exception:  # noqa: BLE001 - whatever it is, the process must not stay
            self.process.kill()
            self.process.wait()


def main() -> None:
    """The child."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed must not be taken for an answer
    # The first line alone, unbuffered: what follows is the loop's to read.
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    uvloop.run(serve(Place(**json.loads(line)), answers))


if __name__ == "__main__":
    main()
