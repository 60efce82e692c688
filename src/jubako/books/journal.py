"""The files of an audit journal: their names, their order, the head that anchors them, and how they are read.

A journal is a folder. `audit-<sequence of the first line>.jsonl` holds lines; `head.json` says which journal it is,
with which line it begins, and up to which line it is known to be on disk. `booked.json` is a note of what the ledger
has, for when its database cannot be asked; nothing depends on it. Knows nothing of who writes or books them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from jubako.books.line import GENESIS, MAX_BYTES, BadLine, Link, link

CHUNK_BYTES = 256 * 1024
NO_END = 1 << 62
_HEAD = "head.json"
_BOOKED = "booked.json"
_NAME = re.compile(r"audit-([0-9]+)\.jsonl")


class BrokenJournal(Exception):
    """The files are not what was written: an altered, missing, moved or foreign line. Says where and what."""


@dataclass(frozen=True, slots=True)
class Position:
    """A line of the chain: everything up to it is meant. Zero is before the first."""

    sequence: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a journal beside its lines."""

    journal: str
    first: int
    """The first line that is kept; older ones were removed after the ledger had taken them."""
    sequence: int
    """Lines up to this one are on disk; later ones may exist."""
    hash: str


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One file, and the sequence that its name promises for its first line."""

    path: Path
    first: int


def file_path(folder: Path, first: int) -> Path:
    """The file that begins with line `first`."""
    return folder / f"audit-{first:016d}.jsonl"


def files(folder: Path) -> list[JournalFile]:
    """The files of the journal, in order; raises `OSError` for a folder that cannot be read."""
    named = [(path, _NAME.fullmatch(path.name)) for path in folder.iterdir()]
    return sorted((JournalFile(path, int(match[1])) for path, match in named if match), key=lambda one: one.first)


def read_head(folder: Path) -> Head | None:
    """The head, or None if there is none. Raises `BrokenJournal` if it is not one."""
    path = folder / _HEAD
    try:
        data = json.loads(path.read_bytes())
        head = Head(str(data["journal"]), int(data["first"]), int(data["sequence"]), str(data["hash"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise BrokenJournal(f"{path}: is not the head of a journal") from None
    return head


def write_head(folder: Path, head: Head) -> None:
    """Replace the head: whoever reads it sees the old one or the new one, whatever is killed when."""
    fresh = folder / f"{_HEAD}.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(asdict(head)).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    fresh.replace(folder / _HEAD)
    sync_folder(folder)


def read_booked(folder: Path, journal: str) -> int:
    """Up to which line the ledger was last known to have this journal; zero if nothing is known."""
    try:
        note = json.loads((folder / _BOOKED).read_bytes())
        return max(int(note["sequence"]), 0) if note["journal"] == journal else 0
    except (OSError, ValueError, TypeError, KeyError):
        return 0


def write_booked(folder: Path, journal: str, sequence: int) -> None:
    """Replace that note. Not synced: a power cut may take it."""
    fresh = folder / f"{_BOOKED}.new"
    fresh.write_text(json.dumps({"journal": journal, "sequence": sequence}) + "\n")
    fresh.replace(folder / _BOOKED)


def sync_folder(folder: Path) -> None:
    """Have the folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lines(descriptor: int, offset: int = 0) -> Iterator[list[bytes]]:
    """The whole lines from `offset` on, some at a time, in constant memory; bytes after the last newline are left.

    Each read starts anew at the first byte not yet given: a writer may still take back a line that is not whole.
    """
    while True:
        data = os.pread(descriptor, CHUNK_BYTES, offset)
        end = data.rfind(b"\n") + 1
        if end == 0:
            if len(data) > MAX_BYTES:
                # Given as it is, cut: no line that we write is so long, and `link` says so.
                yield [data]
            return
        offset += end
        yield [one + b"\n" for one in data[: end - 1].split(b"\n")]


class Reader:
    """Follows a journal from a position on, from file to file, and checks the chain on its way.

    Once it has raised, it is of no more use: a new one starts from the last position that was dealt with.
    """

    def __init__(self, folder: Path, journal: str, after: Position) -> None:
        self._folder = folder
        self._journal = journal
        self._skip_to = after
        self._number = 0
        self._offset = 0
        self._expected: Position | None = None
        """The line before the next one; None where the lines before are no longer kept."""
        self._file = self._first_file(after)
        self._descriptor = os.open(self._file.path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def position(self) -> Position:
        """The last line that was read."""
        return self._expected or self._skip_to

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, until: int = NO_END) -> list[bytes]:
        """The next lines, a bounded number, none beyond `until`; empty if there are none now.

        `until` is a line that is known to be there. Raises `BrokenJournal`.
        """
        while True:
            for chunk in lines(self._descriptor, self._offset):
                wanted, more = self._checked(chunk, until)
                if wanted or not more:
                    return wanted
            if not self._move_on():
                self._require_not_behind(until)
                return []

    def _checked(self, chunk: list[bytes], until: int) -> tuple[list[bytes], bool]:
        """Those of the lines that come after the start, and whether the end was not reached."""
        wanted: list[bytes] = []
        for line in chunk:
            try:
                found = link(line)
            except BadLine as bad:
                raise self._broken(str(bad)) from None
            if found.sequence > until:
                return wanted, False
            self._follow(found)
            self._number += 1
            self._offset += len(line)
            if found.sequence > self._skip_to.sequence:
                wanted.append(line)
        return wanted, True

    def _follow(self, found: Link) -> None:
        before = self._expected
        if found.journal != self._journal:
            raise self._broken(f"belongs to journal {found.journal}, not to {self._journal}")
        if before is None:
            if found.sequence != self._file.first:
                raise self._broken(f"is line {found.sequence} of the journal, not {self._file.first}")
        elif found.sequence != before.sequence + 1:
            raise self._broken(f"is line {found.sequence} of the journal, where {before.sequence + 1} should follow")
        elif found.previous != before.hash:
            raise self._broken("does not follow the line before it")
        if found.sequence == self._skip_to.sequence and found.hash != self._skip_to.hash:
            raise self._broken("is not the line that was taken from here before")
        self._expected = Position(found.sequence, found.hash)

    def _first_file(self, after: Position) -> JournalFile:
        kept = files(self._folder)
        if not kept:
            raise BrokenJournal(f"{self._folder}: no audit file")
        if after.sequence == 0:
            self._expected = Position() if kept[0].first == 1 else None
            return kept[0]
        for one in reversed(kept):
            if one.first <= after.sequence:
                return one
        if kept[0].first != after.sequence + 1:
            raise BrokenJournal(f"{kept[0].path}: the lines after {after.sequence} and before this file are missing")
        self._expected = after
        return kept[0]

    def _move_on(self) -> bool:
        """Go to the following file if this one is at its end."""
        following = next((one for one in files(self._folder) if one.first > self._file.first), None)
        if following is None:
            return False
        if os.fstat(self._descriptor).st_size > self._offset:
            # Written between our read and the rotation, or torn.
            if not any(True for _ in lines(self._descriptor, self._offset)):
                raise self._broken("is cut off, and a file follows")
            return True
        if self._expected is None or following.first != self._expected.sequence + 1:
            raise BrokenJournal(f"{following.path}: the lines before this file are missing")
        descriptor = os.open(following.path, os.O_RDONLY | os.O_CLOEXEC)
        self.close()
        self._file, self._descriptor, self._offset, self._number = following, descriptor, 0, 0
        return True

    def _require_not_behind(self, until: int) -> None:
        """What was read from here before, or is known to be on disk, cannot be absent."""
        there = self._expected.sequence if self._expected else self._file.first - 1
        known = self._skip_to.sequence if until == NO_END else max(until, self._skip_to.sequence)
        if there < known:
            raise BrokenJournal(f"{self._file.path}: ends with line {there}; lines up to {known} were there before")

    def _broken(self, what: str) -> BrokenJournal:
        return BrokenJournal(f"{self._file.path}:{self._number + 1}: {what}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor of the file, for reading."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
