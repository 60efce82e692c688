"""An interpreter that imports vLLM while this process does, and becomes the engine's process once it is described.

vLLM starts the engine's process when the engine is configured; that process then imports what this one has just
imported, and this one waits. Here it is started first. It is the same process as Python's `spawn` method makes, with
the same pipes and the same parent; only its imports are earlier. What it is to run, and the environment as it is by
then, come through its pipe. If anything about it is not as it should be, `spawn` does what it always did.

Knows multiprocessing's `spawn` from within, and nothing of what the engine does. Imports nothing of vLLM: it is used
before vLLM is imported.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import popen_spawn_posix, reduction, resource_tracker, spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess, set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

from jubako.start_times import StartTimes

_PROGRAM = """
import array, contextlib, fcntl, gc, select, sys, termios
sys.path[:] = {path!r}
gc.disable()  # it would look for garbage in what is only growing: a fifth of the time
with contextlib.suppress(Exception):  # whoever needs it imports it again, and is told
    {imports}
gc.freeze()
gc.enable()
select.select([{pipe}], [], [])
waiting = array.array("i", [0])
fcntl.ioctl({pipe}, termios.FIONREAD, waiting)
if waiting[0]:  # else the process that would have told is gone
    from multiprocessing.spawn import spawn_main
    spawn_main(tracker_fd={tracker}, pipe_handle={pipe})
"""
_IMPORTS = ("vllm.v1.engine.core", "vllm.v1.executor.multiproc_executor")
"""What the engine's process imports of vLLM whatever it serves."""
THREADS_VARIABLE = "OMP_NUM_THREADS"


class Interpreter:
    """One process that has begun to import, for one use."""

    def __init__(self) -> None:
        """Start it, in this process's environment: what decides how vLLM is imported is set by now."""
        resource_tracker.ensure_running()
        tracker = resource_tracker.getfd()
        if tracker is None:  # pragma: no cover - it runs
            raise RuntimeError("no resource tracker")
        self.sentinel, child_w = os.pipe()
        child_r, self.pipe = os.pipe()
        program = _PROGRAM.format(path=sys.path, imports="import " + ", ".join(_IMPORTS), pipe=child_r, tracker=tracker)
        options = util._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001 - as spawn does
        # The last word is spawn's: it refuses to run in a process that was not started for it.
        command = [sys.executable, *options, "-c", program, "--multiprocessing-fork"]
        try:
            self.pid = util.spawnv_passfds(os.fsencode(sys.executable), command, [child_r, child_w, tracker])
        except BaseException:
            _close(self.sentinel, self.pipe)
            raise
        finally:
            _close(child_r, child_w)

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        with contextlib.suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        return False

    def discard(self) -> None:
        """Let it end: it sees that nothing will be told."""
        _close(self.sentinel, self.pipe)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What of a start was there before the engine's part of it."""

    times: StartTimes
    interpreter: Interpreter | None = None


class _Popen(popen_spawn_posix.Popen):
    """A child of `spawn` that may have been started before."""

    pid: int

    def _launch(self, process: Any) -> None:
        interpreter = process.interpreter
        process.interpreter = None
        if interpreter is None or not interpreter.alive:
            super()._launch(process)  # type: ignore[misc]
            return
        told = self._told(process)
        if self._fds:  # type: ignore[attr-defined]
            # Descriptors are inherited when a process is started, and this one was started without them.
            interpreter.discard()
            self._fds.clear()  # type: ignore[attr-defined]
            super()._launch(process)  # type: ignore[misc]
            return
        try:
            with open(interpreter.pipe, "wb", closefd=False) as pipe:
                pipe.write(told)
        except OSError:  # it has just ended
            interpreter.discard()
            super()._launch(process)  # type: ignore[misc]
            return
        self.pid, self.sentinel = interpreter.pid, interpreter.sentinel
        self.finalizer = util.Finalize(self, _close, (interpreter.sentinel, interpreter.pipe))

    def _told(self, process: Any) -> memoryview:
        """What `spawn` tells a child: how to prepare, and the process."""
        told = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), told)
            reduction.dump(process, told)
        finally:
            set_spawning_popen(None)
        return told.getbuffer()


class _Process(SpawnProcess):
    """A process of `spawn` that takes its parent's environment as it is when it is told to run."""

    interpreter: Interpreter | None = None

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 - multiprocessing's name
        return _Popen(process_obj)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"interpreter": None, "environment": dict(os.environ)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def run(self) -> None:
        """What it was made for, in the environment it would have been started with."""
        environment: dict[str, str] = self.__dict__.pop("environment")
        threads = environment.get(THREADS_VARIABLE)
        changed = threads != os.environ.get(THREADS_VARIABLE)
        with contextlib.suppress(ImportError):
            # It finds the place of a process's title by the variables it was started with, when it is first asked.
            import_module("setproctitle").getproctitle()
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
        torch = sys.modules.get("torch")
        if torch is not None and changed and threads and threads.isdecimal():
            torch.set_num_threads(int(threads))  # it has read the variable already
        super().run()


class Context(SpawnContext):
    """`spawn`, but the first process that it makes is the interpreter that was started ahead."""

    def __init__(self, interpreter: Interpreter) -> None:
        super().__init__()
        self._interpreter: Interpreter | None = interpreter

    def Process(self, *arguments: Any, **options: Any) -> SpawnProcess:  # type: ignore[override] # noqa: N802
        """As `multiprocessing.Process`."""
        process = _Process(*arguments, **options)
        process.interpreter, self._interpreter = self._interpreter, None
        return process

    def discard(self) -> None:
        """Let the interpreter end if no process was made of it."""
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is not None:
            interpreter.discard()
