"""Reading files to hash them: fast, without following links, without waiting on pipes.

Owns how bytes become a sha256. Knows nothing of manifests.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

BUFFER_BYTES = 1024 * 1024
THREADS = 4

Progress = Callable[[int], None]
"""Told the number of bytes just done; called from several threads."""


def ignore(_: int) -> None:
    """The progress nobody watches."""


class Unreadable(Exception):
    """A file that could not be hashed; the message says why in a few words."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What was read: size in bytes and sha256 in hexadecimal."""

    size: int
    sha256: str


def of_file(path: Path, progress: Progress = ignore) -> Digest:
    """Hash one regular file. Raises `Unreadable` for anything else, and for a file that changes meanwhile."""
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor, opened with flags of our own
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise Unreadable("not a regular file")
            digest, size = hashlib.sha256(), 0
            buffer = memoryview(bytearray(min(BUFFER_BYTES, before.st_size + 1)))
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                size += count
                progress(count)
                if size > before.st_size:  # grows while we read: stop, or it could keep us reading for ever
                    break
            after = os.fstat(descriptor)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size) or size != after.st_size:
        raise Unreadable("changed while it was read")
    return Digest(size, digest.hexdigest())


def of_files(paths: Iterable[Path], progress: Progress = ignore) -> Mapping[Path, Digest | Unreadable]:
    """Hash many files in parallel, the largest first so that none is left to run alone at the end."""

    def attempt(path: Path) -> Digest | Unreadable:
        try:
            return of_file(path, progress)
        except Unreadable as error:
            return error

    ordered = sorted(paths, key=_size, reverse=True)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:  # hashlib releases the interpreter's lock
        return dict(zip(ordered, pool.map(attempt, ordered), strict=True))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
