"""The audit's lines once more, on standard output, for platforms that collect logs from there.

A copy, made from the journal by a thread of its own: a reader of the output who stops holds up nothing else. What a
killed server had not yet copied is in the journal only. Knows nothing of how lines are written.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import closing
from pathlib import Path

from jubako.books.journal import BrokenJournal, Position, Reader

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25


class Echo:
    """Copies every line after `after` to `descriptor`."""

    def __init__(self, folder: Path, journal: str, after: Position, descriptor: int) -> None:
        self._folder = folder
        self._journal = journal
        self._after = after
        self._descriptor = descriptor
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit-echo", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Copy what is left, but wait no longer than this for it."""
        self._closing.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            with closing(Reader(self._folder, self._journal, self._after)) as reader:
                while True:
                    last_round = self._closing.is_set()
                    while lines := reader.read():
                        _write(self._descriptor, b"".join(lines))
                    if last_round:
                        return
                    self._closing.wait(POLL_SECONDS)
        except (BrokenJournal, OSError) as error:
            logger.error("audit: no longer copied to standard output: %s", error)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
