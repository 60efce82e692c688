"""A file that is read again when it changes, and whose last good content stays in force when an edit breaks it.

Owns when a change is seen and what is logged of it. Knows nothing of what is in the file. Everything here blocks:
callers use a thread.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from jubako.errors import StartupFault

logger = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
"""A file changed this short a time before it was read is read once more: a clock tick can hold two changes."""
TOLD_FAULTS = 5
_Signature = tuple[int, ...]

Content = TypeVar("Content")


class WatchedFile(Generic[Content]):
    """One file, looked at now and then.

    With `settle`, a change is read only once it has stood still from one look to the next: an editor writes in pieces,
    and half a YAML file can be a whole one with fewer entries.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        read: Callable[[Path], bytes],
        parse: Callable[[bytes, Path], Content],
        *,
        settle: bool,
    ) -> None:
        self.path = path
        self._what = what
        self._read = read
        self._parse = parse
        self._settle = settle
        self._signature: _Signature | None = None
        self._pending: _Signature | None = None
        self._fresh = False
        self._digest = b""
        self._told: set[bytes] = set()

    def load(self) -> Content:
        """The content, for the first time; raises `StartupFault`."""
        self._signature = self._pending = _signature(self.path)
        content = self._read_now()
        self._digest = hashlib.sha256(content).digest()
        return self._parse(content, self.path)

    def changed(self) -> Content | None:
        """The content if it changed and is good, else None; a change that is no good is logged, once."""
        signature = _signature(self.path)
        if signature == self._signature and not self._fresh:
            return None
        if self._settle and signature != self._pending:
            self._pending = signature
            return None
        self._signature = self._pending = signature
        try:
            content = self._read_now()
        except StartupFault as fault:
            self._fresh = False
            self._tell(str(fault).encode(), fault)
            return None
        digest = hashlib.sha256(content).digest()
        if digest == self._digest:
            self._good_again()
            return None
        return self._parsed(content, digest)

    def _parsed(self, content: bytes, digest: bytes) -> Content | None:
        if digest in self._told:
            return None
        try:
            with _without_collections():
                parsed = self._parse(content, self.path)
        except StartupFault as fault:
            self._tell(digest, fault)
            return None
        self._digest = digest
        self._told.clear()
        logger.info("%s: the changed %s are in force", self.path, self._what)
        return parsed

    def _read_now(self) -> bytes:
        content = self._read(self.path)
        modified = self._signature[-1] / 1e9 if self._signature else 0.0
        self._fresh = abs(time.time() - modified) < FRESH_SECONDS
        return content

    def _good_again(self) -> None:
        if self._told:
            self._told.clear()
            logger.info("%s: the %s in force are in the file again", self.path, self._what)

    def _tell(self, key: bytes, fault: StartupFault) -> None:
        if key in self._told:
            return
        self._told.add(key)
        lines = str(fault).splitlines()
        more = f" (and {len(lines) - TOLD_FAULTS} more faults)" if len(lines) > TOLD_FAULTS else ""
        logger.error("the last good %s stay in force: %s%s", self._what, "; ".join(lines[:TOLD_FAULTS]), more)


@contextmanager
def _without_collections() -> Iterator[None]:
    """No collection of garbage during the block, in any thread of the process.

    Reading ten thousand tenants makes half a million objects for a moment, all of them freed without one; each
    collection that they set off would look at all of them, for 0.2 seconds in which no stream gets a token.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _signature(path: Path) -> _Signature | None:
    """What changes with the file; links are followed, so that Kubernetes' swap of a folder is seen."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - the same, twice as fast
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mode, stat.st_ctime_ns, stat.st_mtime_ns)
