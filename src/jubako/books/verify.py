"""Whether the lines of an audit are those that were written: none altered, missing, doubled, moved or cut off.

Reads in constant memory and changes nothing; may run beside the server. Knows nothing of the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jubako.books import journal
from jubako.books.journal import BrokenJournal, Head, JournalFile
from jubako.books.line import BadLine, Link, link

UNFINISHED_SECONDS = 0.2
"""A line that a running server is just writing is whole after this long."""


@dataclass(slots=True)
class Verification:
    """What one chain was found to be, as far as it was read."""

    lines: int = 0
    last: Link | None = None
    """The last line that was right by itself."""
    unsure: bool = False
    """Whether a line that could not be read came after it: then nothing is known of the next one's neighbour."""
    anchored: bool = False


def verify_folder(folder: Path, count: Verification) -> Iterator[str]:
    """Every fault of a journal, with file, line and what is wrong; none if it is as it was written."""
    try:
        head = journal.read_head(folder)  # before the lines: a running server moves it after them
        kept = journal.files(folder)
    except BrokenJournal as broken:
        yield str(broken)
        return
    except OSError as error:
        yield f"{error.filename or folder}: cannot be read: {error.strerror}"
        return
    if head is None:
        yield f"{folder}: no head.json: lines that were cut off at the end could not be seen"
        if not kept:
            return
    elif kept and kept[0].first > head.first and kept[0].first > _first_kept(folder):
        yield f"{kept[0].path}:1: lines {head.first} to {kept[0].first - 1} are missing before it"
    elif not kept and head.sequence:
        yield f"{folder}: lines {head.first} to {head.sequence} are missing: there is no audit file"
    for file in kept:
        yield from _file(file, count, head, running=file is kept[-1])
    if head is not None and kept:
        yield from _anchor(kept[-1], count, head)


def verify_files(paths: Iterable[Path], count: Verification) -> Iterator[str]:
    """The same for single files, one after the other as one chain. What was before and after is not known."""
    for path in paths:
        yield from _file(JournalFile(path, 0), count, None, running=False)


def _anchor(file: JournalFile, count: Verification, head: Head) -> Iterator[str]:
    last = count.last.sequence if count.last else head.first - 1
    if _first_kept(file.path.parent) > max(head.first, head.sequence):
        return  # its line was removed since, and so perhaps was all that we were to read
    if last < head.sequence:
        yield f"{file.path}: ends with line {last}; lines {last + 1} to {head.sequence} were cut off"
    elif head.sequence >= head.first and not count.anchored:
        yield f"{file.path}: line {head.sequence} is not the one that head.json names"


def _file(file: JournalFile, count: Verification, head: Head | None, *, running: bool) -> Iterator[str]:
    number = offset = 0
    try:
        with journal.reading(file.path) as descriptor:
            for chunk in journal.lines(descriptor):
                for line in chunk:
                    number += 1
                    offset += len(line)
                    if what := _line(line, count, file, head, first=number == 1):
                        yield f"{file.path}:{number}: {what}"
            if running and _size(file.path) > offset:
                time.sleep(UNFINISHED_SECONDS)
                if any(True for _ in journal.lines(descriptor, offset)):
                    return  # it goes on growing; what is there now was not there when we began
            if _size(file.path) > offset:
                yield f"{file.path}:{number + 1}: is cut off within the line"
    except FileNotFoundError:
        if head is not None and file.first < _first_kept(file.path.parent):
            count.last = None  # the next file has nothing to follow
        else:
            yield f"{file.path}: vanished while it was to be read"
    except OSError as error:
        yield f"{file.path}: cannot be read: {error.strerror}"


def _first_kept(folder: Path) -> int:
    """The first line as the head has it by now: a running server moves it before it removes a file."""
    with suppress(BrokenJournal, OSError):
        head = journal.read_head(folder)
        return 0 if head is None else head.first
    return 0


def _size(path: Path) -> int:
    return path.stat().st_size


def _line(line: bytes, count: Verification, file: JournalFile, head: Head | None, *, first: bool) -> str:
    """What is wrong with one line, or nothing; `count` is brought up to it."""
    try:
        found = link(line)
    except BadLine as bad:
        count.unsure = True
        return str(bad)
    count.lines += 1
    before, count.last = count.last, found
    unsure, count.unsure = count.unsure, False
    if head is not None:
        count.anchored = count.anchored or (head.sequence, head.hash) == (found.sequence, found.hash)
        if found.journal != head.journal:
            return f"belongs to journal {found.journal}, not to {head.journal}"
    if first and file.first not in (0, found.sequence):
        return f"is line {found.sequence} of the journal, not {file.first} as the file's name says"
    return _neighbours(before, found, unsure=unsure)


def _neighbours(before: Link | None, found: Link, *, unsure: bool) -> str:
    """What is wrong between a line and the one before it."""
    if before is None:
        starts_anew = found.sequence == 1 and found.previous != journal.Position().hash
        return "is line 1 and yet has a line before it" if starts_anew else ""
    if found.journal != before.journal:
        return f"belongs to journal {found.journal}, not to {before.journal}"
    expected = before.sequence + 1
    if found.sequence == expected:
        follows = found.previous == before.hash
        return "" if follows else "does not follow the line before it: one of the two was written anew"
    if found.sequence < expected:
        return f"is line {found.sequence} of the journal again, or out of order: {expected} should follow"
    if unsure and found.sequence == expected + 1:
        return ""  # the line between is the one that was told already
    missing = str(expected) if found.sequence == expected + 1 else f"{expected} to {found.sequence - 1}"
    return f"is line {found.sequence} of the journal; missing before it: {missing}"
