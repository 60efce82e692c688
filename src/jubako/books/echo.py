"""The audit's lines once more, on standard output, for platforms that collect logs from there.

A copy, made from the journal by a thread of its own: a reader of the output who stops holds up nothing else, not even
the removal of old files. What a killed server had not yet copied, or what was removed before a reader took it, is not
in the copy; `sequence` shows it. Knows nothing of how lines are written.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from contextlib import closing
from pathlib import Path

from jubako.books.journal import BrokenJournal, Position, Reader, read_head

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25


class Echo:
    """Copies every line after `after` to `descriptor`."""

    def __init__(self, folder: Path, journal: str, after: Position, descriptor: int) -> None:
        self._folder = folder
        self._journal = journal
        self._start = after
        self._copied = after.sequence
        self._descriptor = descriptor
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-echo", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Copy what is left, but wait no longer than this for it."""
        self._closing.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            try:
                self._copy()
            except (BrokenJournal, OSError) as error:
                if self._overtaken():
                    continue
                logger.error("audit: no longer copied to standard output: %s", error)
            return

    def _copy(self) -> None:
        with closing(Reader(self._folder, self._journal, self._start)) as reader:
            while True:
                last_round = self._closing.is_set()
                while lines := reader.read():
                    _write(self._descriptor, b"".join(lines))
                    self._copied = reader.position.sequence
                if last_round:
                    return
                self._closing.wait(POLL_SECONDS)

    def _overtaken(self) -> bool:
        """Whether lines were removed that had not been copied; then it is to go on with the oldest that is kept."""
        try:
            head = read_head(self._folder)
        except (BrokenJournal, OSError):
            return False
        if head is None or head.first <= self._copied + 1:
            return False
        logger.warning(
            "audit: lines %d to %d were not copied to standard output: its reader was too slow",
            self._copied + 1,
            head.first - 1,
        )
        self._start, self._copied = Position(), head.first - 1
        return True


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it, however slowly it is taken; a descriptor that does not block is waited for.

    Whether it blocks is not ours to say: everyone who has the same pipe or terminal shares that with us.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT)
            ready.poll(POLL_SECONDS * 1000)
