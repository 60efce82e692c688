"""The operating system's side of an end: children, parents, and a last resort. Linux. Knows nothing of engines."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

KILL_SECONDS = 5.0
"""For killed processes to be gone; what the kernel holds longer is left to the warden."""
_PR_SET_PDEATHSIG = 1
_WARDEN = Path(__file__).with_name("warden.py")


def die_with_parent(signum: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send `signum` to this process when its parent dies, however the parent dies."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum.value) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def leave_a_warden() -> None:
    """Start the process that ends this one's session once this one is gone, however it goes.

    The pipe stays open as long as this process lives, and is closed to every process it starts.
    """
    if os.getsid(0) != os.getpid():
        os.setsid()
    reading, _writing = os.pipe()
    command = [sys.executable, "-I", "-S", str(_WARDEN), str(os.getpid())]
    subprocess.Popen(command, stdin=reading, start_new_session=True)
    os.close(reading)


def kill_descendants() -> None:
    """Kill every process below this one and wait until they are gone; those that clean up after them are left to it."""
    descendants = [process for process in psutil.Process().children(recursive=True) if not _cleans_up(process)]
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(descendants, timeout=KILL_SECONDS)


def _cleans_up(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("resource_tracker" in part or part == str(_WARDEN) for part in process.cmdline())
    return False


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
