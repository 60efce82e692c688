"""A pipe that nobody reads, and somebody who reads it later."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress


class Reader:
    """Reads a pipe or socket in a thread, once it is told to."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._read = bytearray()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """From now on everything is read."""
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        """What came so far."""
        return bytes(self._read).decode().splitlines(keepends=True)

    def _run(self) -> None:
        with suppress(OSError):
            while data := os.read(self._number, 65_536):
                self._read += data


def fill(number: int) -> None:
    """Leave no room in the pipe, as another process that writes to it would."""
    again = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(again, b"x" * (select.PIPE_BUF - 1) + b"\n")
    finally:
        os.close(again)
