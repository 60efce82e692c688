"""Whose turn it is at a file: one of several processes has it, and can tell that another would like to.

Locks of the kernel on two empty files beside it: they end with their process, however that ends. Not those of SQLite,
which end with each transaction, and between two of one process another could come. A child that is forked, and starts
no other program, would share them. Knows nothing of what is in the file.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_PAUSE_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005)
GIVING_WAY_SECONDS = 0.02
"""How long the one that had the turn lets others come first: four times the longest pause between two looks."""


class Turn:
    """One instance's place in the queue; `OSError` if the files cannot be made."""

    def __init__(self, file: Path) -> None:
        self._turn = _open(file.with_name(f"{file.name}-turn"))
        try:
            self._wish = _open(file.with_name(f"{file.name}-wish"))
        except OSError:
            os.close(self._turn)
            raise
        self.taken = False

    def take(self, seconds: float) -> None:
        """Wait so long for the turn; raises `TimeoutError`."""
        if self.taken or _try_lock(self._turn):
            self.taken = True
            return
        fcntl.flock(self._wish, fcntl.LOCK_SH)  # who has it for itself only looks, and is gone at once
        try:
            give_up_at, attempt = time.monotonic() + seconds, 0
            while not _try_lock(self._turn):
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"another process had it for {seconds:g} seconds")
                time.sleep(pause_seconds(attempt))
                attempt += 1
        finally:
            fcntl.flock(self._wish, fcntl.LOCK_UN)
        self.taken = True

    def wanted(self) -> bool:
        """Whether another waits for it."""
        if not _try_lock(self._wish):
            return True
        fcntl.flock(self._wish, fcntl.LOCK_UN)
        return False

    def leave(self) -> None:
        """Leave it to whoever waits, and give them time to take it."""
        if not self.taken:
            return
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        self.taken = False
        give_up_at = time.monotonic() + GIVING_WAY_SECONDS
        while self.wanted() and time.monotonic() < give_up_at:
            time.sleep(_PAUSE_SECONDS[0])

    def close(self) -> None:
        """Leave it for good."""
        os.close(self._turn)
        os.close(self._wish)


def pause_seconds(attempt: int) -> float:
    """How long to wait before the next look: short, so that nobody is overtaken for long."""
    return _PAUSE_SECONDS[min(attempt, len(_PAUSE_SECONDS) - 1)]


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
