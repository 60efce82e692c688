"""A project folder of its own, and the real server run from it: what the tests of whole processes share.

It knows the files of a project, the command line and the operating system; it knows nothing of requests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
DEMO = "smollm2-135m-instruct"
READY_SECONDS = 300.0
END_SECONDS = 60.0
POLL_SECONDS = 0.1
FEWEST_LOOKS = 20
MARK = "JUBAKO_TEST_MARK"
"""An environment variable that every process of one server inherits, so that orphans are found too."""


def until(condition: Callable[[], object], what: str, seconds: float = END_SECONDS) -> None:
    """Wait until `condition` holds; fail saying `what` did not happen.

    Time alone does not fail it: it was looked at often enough too, or a machine that stood still would have decided.
    """
    deadline, looks = time.monotonic() + seconds, 0
    while not condition():
        looks += 1
        if time.monotonic() > deadline and looks >= FEWEST_LOOKS:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Project:
    """A folder with service.py and configuration/, and the environment its servers get."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def copy_to(cls, folder: Path, environment: Mapping[str, str] | None = None) -> Project:
        """The repository's service and configuration, copied; the package itself is the installed one."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "service.py", folder)
        shutil.copytree(REPOSITORY / "configuration", folder / "configuration")
        return cls(folder, dict(environment or {}))

    def jubako(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run `jubako …` in the folder to its end."""
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            [sys.executable, "-m", "jubako.cli", *arguments],
            cwd=self.folder,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            **options,
        )

    @contextmanager
    def serving(
        self,
        command: Sequence[str] | None = None,
        *,
        prefix: Sequence[str] = (),
        port: int | None = None,
        stderr: int = subprocess.STDOUT,
    ) -> Iterator[Served]:
        """Start the server (`jubako serve` unless `command` says otherwise); what is left at the end is killed.

        Its standard error is in the log file, unless it is to be `stderr`.
        """
        port = port or free_port()
        command = command or [sys.executable, "-m", "jubako.cli", "serve", "--port", str(port)]
        mark = uuid.uuid4().hex
        log = self.folder / f"server-{port}.log"
        before = shared_memory()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, *command],
                cwd=self.folder,
                env=os.environ | self.environment | {MARK: mark},
                stdout=output,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            served = Served(process, f"http://127.0.0.1:{port}", self.folder / ".jubako" / "dev.key", log, mark, before)
            try:
                yield served
            finally:
                served.kill()


@dataclass
class Served:
    """A running server and everything below it."""

    process: subprocess.Popen[bytes]
    url: str
    key_file: Path
    log_file: Path
    mark: str
    shared_memory_before: frozenset[str]
    seen: set[psutil.Process] = field(default_factory=set)
    """Every process found so far. The engine's overwrite their environment with their title, so the mark alone is not
    enough; orphans lose their parent, so parentage alone is not either."""

    @property
    def key(self) -> str:
        """The API key."""
        return self.key_file.read_text().strip()

    @property
    def operator_key(self) -> str:
        """The key that reads metrics and may do nothing else."""
        return self.operator_key_file.read_text().strip()

    @property
    def operator_key_file(self) -> Path:
        """Where that key is: a server that finds no keys makes it."""
        return self.key_file.with_name("operator.key")

    @property
    def log(self) -> str:
        """Everything it wrote."""
        return self.log_file.read_text(errors="replace")

    def wait_ready(self, seconds: float = READY_SECONDS) -> Served:
        """Wait for readiness; fail at once if the process ends."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log[-4000:]}")
            with suppress(httpx.TransportError):
                return httpx.get(f"{self.url}/readyz", timeout=5).status_code == httpx.codes.OK
            return False

        until(ready, "ready", seconds)
        self.processes()  # while all of them can still be found
        return self

    def wait_end(self, seconds: float = END_SECONDS) -> int:
        """Wait for the process to end and return its exit status."""
        return self.process.wait(seconds)

    def terminate(self) -> None:
        """Send SIGTERM to the arbiter, as an orchestrator does."""
        self.process.send_signal(signal.SIGTERM)

    def processes(self) -> list[psutil.Process]:
        """Every living process of this server, orphans included."""
        if self.process.poll() is None:
            self.seen.add(psutil.Process(self.process.pid))
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark:
                    self.seen.add(process)
        for process in list(self.seen):
            with suppress(psutil.Error):
                self.seen.update(process.children(recursive=True))
        return [process for process in self.seen if _lives(process)]

    def worker(self) -> psutil.Process:
        """The process that serves HTTP and owns the engine."""
        return self._only(lambda line: "_bentoml_impl.worker.service" in line)

    def engine_core(self) -> psutil.Process:
        """The engine's own process."""
        return self._only(lambda line: "EngineCore" in line)

    @contextmanager
    def engine_held(self) -> Iterator[None]:
        """The engine takes no step as long as the block runs: how fast it decodes must not decide a test."""
        engine = self.engine_core()
        engine.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(psutil.NoSuchProcess):
                engine.send_signal(signal.SIGCONT)

    def _only(self, matches: Callable[[str], bool]) -> psutil.Process:
        for process in self.processes():
            with suppress(psutil.Error):
                if matches(" ".join([process.name(), *process.cmdline()])):
                    return process
        raise AssertionError(f"no such process among {[p.cmdline()[:6] for p in self.processes()]}")

    def assert_nothing_left(self) -> None:
        """No process and no shared memory of it remain."""
        until(lambda: not self.processes(), "all its processes ended", 20)
        left = shared_memory() - self.shared_memory_before
        assert not left, f"left in shared memory: {sorted(left)}"

    def kill(self) -> None:
        """End whatever is left of it, now."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def shared_memory() -> frozenset[str]:
    """The names in /dev/shm."""
    return frozenset(entry.name for entry in Path("/dev/shm").iterdir())
