"""Log lines to standard error without ever waiting for whoever reads it.

Owns the handler, what waits while nobody reads, the thread that writes it, and the count of what was dropped. Knows
nothing of what is in a line or of whose lines come here: that is `logs`.

A write to a pipe or terminal that nobody reads blocks for as long as that lasts, and with it the event loop: every
stream, the probes, the engine's output. The standard library's `QueueHandler` moves each line to another thread, whose
wake-ups cost tens of microseconds a line, and there is a line a request. So a line is written at once as long as that
cannot block, and goes to a thread only after it could.

Asking first (`poll`) would not do: the engine's process writes to the same pipe and may fill it in between. So the
write itself is one that does not wait. That is a property of an open file description, and the one behind standard
error is shared with other processes, who may not expect it: it is opened once more for ourselves.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TextIO

from jubako.telemetry.content import place

__all__ = ["FLUSH_SECONDS", "QUEUE_BYTES", "Sink", "StandardErrorHandler", "dropped_lines"]

QUEUE_BYTES = 4 * 2**20
"""Thousands of lines: a reader that is away for seconds loses none."""
FLUSH_SECONDS = 1.0
"""Of the process' end, for what waits; a reader who is still away does not hold it up."""

_sinks: list[Sink] = []
"""Of this process: one, as standard error stays what it is outside of tests."""


def dropped_lines() -> int:
    """How many lines of this process nobody took and the queue had no room for."""
    return sum(sink.dropped for sink in _sinks)


class StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Every handler of the process writes by the one sink, so that none overtakes what waits there."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(formatter)
        self._own_formatter = formatter
        sink = next((one for one in _sinks if one.stream is sys.stderr), None)
        if sink is None:
            sink = Sink(sys.stderr, self._loss)
            _sinks.append(sink)
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Never waits for a reader."""
        try:
            self._sink.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - it would be the exception of whoever logs
            self.handleError(record)

    def say(self, line: str) -> None:
        """Write a line that is made already."""
        self._sink.write(line + "\n")

    def flush(self) -> None:
        """Nothing: libraries call it in the event loop's thread. The sink has its own end."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        """Name the fault. The standard library would print the record, which may quote a request, and may wait."""
        error = sys.exception()
        if error is not None:
            self._sink.write(self._said(logging.ERROR, "a line of %s could not be made: %s", record.name, place(error)))

    def _loss(self, count: int) -> str:
        return self._said(logging.WARNING, "log lines dropped, as nobody read those before: %d", count)

    def _said(self, level: int, message: str, *values: object) -> str:
        record = logging.LogRecord(__name__, level, __file__, 0, message, values, None)
        return self._own_formatter.format(record) + "\n"


class Sink:
    """One stream. `loss` words the line that tells how many were dropped."""

    def __init__(self, stream: TextIO, loss: Callable[[int], str], *, queue_bytes: int = QUEUE_BYTES) -> None:
        self.stream = stream
        self.dropped = 0
        """Lines, since the start."""
        self._loss = loss
        self._queue_bytes = queue_bytes
        self._at_once, self._waiting = _ways(stream)
        self._begin()
        # Not `logging.shutdown`: a library that configures logging takes every handler off its list.
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Empty, with no thread: also in a forked process, where what waits is the parent's to write."""
        self._untold = 0
        self._held = 0
        self._queue: deque[bytes] = deque()
        # Reentrant: a signal's handler or a finalizer may log within a log call.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Write the line now, or leave it to the thread, or drop it; in any case return."""
        data = line.encode(errors="backslashreplace")
        with self._changed:
            if not self._queue:
                data = data[self._now(data) :]
            if data:
                self._later(data)

    def _now(self, data: bytes) -> int:
        """How much of it was taken without waiting; all of it when it cannot be written at all."""
        try:
            taken = self._at_once(data)
        except BlockingIOError:
            return 0
        except (OSError, ValueError):  # whoever read has gone, the disk is full, the stream is closed
            self._drop()
            return len(data)
        if self._untold and taken == len(data):
            self._later(self._told())
        return taken

    def _later(self, data: bytes) -> None:
        if self._held + len(data) > self._queue_bytes or not self._thread_runs():
            self._drop()
            return
        self._queue.append(data)
        self._held += len(data)
        self._changed.notify_all()

    def _thread_runs(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._empty, name="jubako-log", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread can be had, as at the end of the interpreter
                return False
            self._thread = thread
        return True

    def _drop(self) -> None:
        self.dropped += 1
        self._untold += 1

    def _told(self) -> bytes:
        count, self._untold = self._untold, 0
        return self._loss(count).encode()

    def _empty(self) -> None:
        """The thread: write what waits, in order, for as long as each write takes."""
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                data = self._queue[0]  # stays there meanwhile: as long as something waits, nobody overtakes it
            written = self._whole(data)
            with self._changed:
                self._queue.popleft()
                self._held -= len(data)
                if not written:
                    self._drop()
                elif self._untold and not self._queue:
                    self._later(self._told())
                self._changed.notify_all()

    def _whole(self, data: bytes) -> bool:
        try:
            while data:
                data = data[self._waiting(data) :]
        except (OSError, ValueError):
            return False
        return True

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Wait until nothing waits any more, `seconds` at most."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._queue and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)


Way = Callable[[bytes], int]
"""Writes some of what it is given and says how much. One that does not wait raises `BlockingIOError` instead."""


def _ways(stream: TextIO) -> tuple[Way, Way]:
    """How to write to it without waiting, and how to write to it whatever it takes."""
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError):  # memory, in tests
        return partial(_to_memory, stream), partial(_to_memory, stream)
    if stat.S_ISREG(mode):  # a disk always takes it; and a second description would write elsewhere in the file
        return partial(os.write, number), partial(_patiently, number)
    if stat.S_ISSOCK(mode):
        own = socket.socket(fileno=os.dup(number))
        return lambda data: own.send(data, socket.MSG_DONTWAIT), partial(_patiently, number)
    try:
        # O_NOCTTY: opening a terminal must not make it ours.
        again = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # it belongs to somebody else: then every line is the thread's
        return _never, partial(_patiently, number)
    return partial(os.write, again), partial(_patiently, number)


def _to_memory(stream: TextIO, data: bytes) -> int:
    stream.write(data.decode())
    stream.flush()
    return len(data)


def _never(_: bytes) -> int:
    raise BlockingIOError


def _patiently(number: int, data: bytes) -> int:
    try:
        return os.write(number, data)
    except BlockingIOError:  # somebody else has made the shared description one that does not wait
        waiting = select.poll()
        waiting.register(number, select.POLLOUT)
        waiting.poll()
        return 0
