"""How a journal is found at a start: locked for one process, its end intact, what was torn set aside.

Knows nothing of how lines are written after that.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from jubako.books import journal
from jubako.books.journal import BrokenJournal, Head, JournalFile, Position
from jubako.books.line import BadLine, link
from jubako.errors import StartupFault

logger = logging.getLogger(__name__)


class Lock:
    """The right to write a journal; held by one process until it ends or lets go."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise StartupFault(
                f"books.audit_folder: another process writes {folder}; end it, or give each server a folder of its own"
            ) from None
        _held.add(self)

    def release(self) -> None:
        """Let go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child shares the lock and may outlive us: a killed server could not be started again."""
    for lock in _held:
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)


@dataclass(frozen=True, slots=True)
class End:
    """Where a journal goes on: the file that is written next, its bytes so far, and the line before."""

    head: Head
    position: Position
    path: Path
    size: int
    created: bool
    """Whether the journal is new."""


@dataclass(slots=True)
class _Scan:
    """What was found in one file: everything up to `size` is right."""

    position: Position
    size: int = 0
    number: int = 0
    anchored: bool = False
    """Whether the line that the head names was met."""
    fault: str = ""


def find_end(folder: Path) -> End:
    """The end of the journal in `folder`, mended if it was torn; a new journal if there is none.

    Raises `StartupFault` if lines that were known to be on disk are missing or altered.
    """
    try:
        head = journal.read_head(folder)
        kept = journal.files(folder)
        if not kept:
            return _begin(folder, head)
        if head is None:
            raise BrokenJournal(f"{folder}: head.json is missing, so nothing tells whether lines were cut off")
        return _resume(folder, head, kept)
    except BrokenJournal as broken:
        raise StartupFault(
            f"the audit is broken: {broken}. Find out why (`jubako audit verify` says more), then move the folder "
            "away: the next start begins a new journal."
        ) from None


def _begin(folder: Path, head: Head | None) -> End:
    if head is not None and head.sequence > 0:
        raise BrokenJournal(f"{folder}: the audit files are gone; the head says there were {head.sequence} lines")
    start = Position()
    if head is None:
        head = Head(secrets.token_hex(8), first=1, sequence=0, hash=start.hash)
        journal.write_head(folder, head)
    return End(head, start, journal.file_path(folder, 1), size=0, created=True)


def _resume(folder: Path, head: Head, kept: list[JournalFile]) -> End:
    """From the last file; from the one before it too, if the process ended between making a file and using it."""
    last = kept[-1]
    scan = _scan(last, head)
    if scan.size == 0 and len(kept) > 1:
        before = _scan(kept[-2], head)
        if before.fault or kept[-2].path.stat().st_size != before.size:
            raise BrokenJournal(f"{kept[-2].path}:{before.number + 1}: {before.fault or 'is cut off'}")
        scan.position, scan.anchored = before.position, before.anchored
    if scan.position.sequence + 1 != last.first and scan.size == 0:
        raise BrokenJournal(f"{last.path}: the lines before this file are missing")
    if scan.fault and scan.position.sequence < head.sequence:
        raise BrokenJournal(f"{last.path}:{scan.number + 1}: {scan.fault}")
    if scan.position.sequence < head.sequence:
        raise BrokenJournal(
            f"{last.path}: ends at line {scan.position.sequence}; the head says that line {head.sequence} was on disk"
        )
    if head.sequence >= last.first and not scan.anchored:
        raise BrokenJournal(f"{last.path}: line {head.sequence} is not the one that the head names")
    _set_aside(folder, last.path, scan)
    return End(head, scan.position, last.path, scan.size, created=False)


def _scan(file: JournalFile, head: Head) -> _Scan:
    """Read a file up to its end or to the first thing that is wrong."""
    scan = _Scan(Position())
    before: Position | None = Position() if file.first == 1 else None
    with journal.reading(file.path) as descriptor:
        for chunk in journal.lines(descriptor):
            for line in chunk:
                try:
                    found = link(line)
                    _require_next(found.journal == head.journal, "belongs to another journal")
                    expected = file.first if before is None else before.sequence + 1
                    _require_next(found.sequence == expected, f"is line {found.sequence}, not {expected}")
                    _require_next(before is None or found.previous == before.hash, "does not follow the line before")
                except BadLine as bad:
                    scan.fault = str(bad)
                    return scan
                before = scan.position = Position(found.sequence, found.hash)
                scan.anchored = scan.anchored or (head.sequence, head.hash) == (found.sequence, found.hash)
                scan.size += len(line)
                scan.number += 1
    return scan


def _require_next(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise BadLine(otherwise)


def _set_aside(folder: Path, path: Path, scan: _Scan) -> None:
    """Move what follows the last intact line into a file of its own.

    Only bytes that were not yet known to be on disk get here: a power cut or a full disk tore them.
    """
    torn = path.stat().st_size - scan.size
    if torn == 0:
        return
    aside = folder / f"torn-{scan.position.sequence + 1:016d}-{int(time.time() * 1000)}"
    with path.open("r+b") as source, aside.open("xb") as target:
        source.seek(scan.size)
        while piece := source.read(journal.CHUNK_BYTES):
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())
        source.truncate(scan.size)
        os.fsync(source.fileno())
    journal.sync_folder(folder)
    logger.error(
        "audit: %d bytes after line %d were torn (%s); they are in %s, and the chain goes on",
        torn,
        scan.position.sequence,
        scan.fault or "a line without its end",
        aside,
    )
