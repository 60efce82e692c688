"""A small process that outlives the worker by a moment, to end what the worker leaves behind when it is killed.

vLLM's engine process does not notice that its parent is gone: after `kill -9` of the worker it would hold the model's
memory for ever. This script waits for the end of a pipe that only the worker holds open, then kills every process of
the worker's session. It is run by path and imports the standard library alone, so it costs little.

Usage: warden.py SESSION, with the pipe as standard input.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.05


def main(session: int) -> None:
    """Wait for the worker's end, then leave nothing of its session."""
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The arbiter signals all children of the worker; this one has to see the end.
        signal.signal(ignored, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + PATIENCE_SECONDS
    while members := members_of(session):
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_SECONDS)


def members_of(session: int) -> list[int]:
    """The living processes of `session`, but for Python's resource tracker: that one removes shared memory and ends."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            # After the name in parentheses, which may hold anything: state, parent, group, session.
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) != session or state == "Z":
                continue
            if b"resource_tracker" not in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
