"""The operating system's side of an end: children, parents, and a last resort. Linux. Knows nothing of engines."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time

import psutil

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send `signum` to this process when its parent dies, however the parent dies."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum.value) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def kill_descendants() -> None:
    """Kill every process below this one and wait until they are gone."""
    descendants = psutil.Process().children(recursive=True)
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(descendants, timeout=5)


def exit_at_latest(seconds: float, status: int) -> None:
    """End this process and all below it in `seconds`, whatever it is doing by then; a clean exit comes first."""

    def end() -> None:
        time.sleep(seconds)
        exit_now(status)

    threading.Thread(target=end, name="exit-at-latest", daemon=True).start()


def exit_now(status: int) -> None:
    """End this process and all below it without any clean-up of the interpreter's."""
    kill_descendants()
    os._exit(status)
