"""Writing secrets' files: in one piece, for their owner alone, by one process at a time.

Knows nothing of what is written.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jubako.errors import StartupFault

LOCK_SECONDS = 30.0
"""A writer holds the lock for milliseconds; one that waits this long waits for something that hangs."""
_RETRY_SECONDS = 0.02


@contextmanager
def lock(path: Path, *, wait_seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Be the only writer of `path`. The lock is the kernel's: it ends with the process, however that ends."""
    beside = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartupFault(f"{path}: cannot be written: {beside}: {error.strerror or error}") from None
    try:
        deadline = time.monotonic() + wait_seconds
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise StartupFault(f"{path}: another process has held {beside} for {wait_seconds:g} s")
            time.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path`, durable when this returns; to be called under its lock.

    A reader sees the old or the new file, also after a crash. The new one is for its owner alone; a group that could
    read the old one still can, and its owner stays, so that a server under another user still reads its keys.
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.new")
    try:
        draft.unlink(missing_ok=True)  # a writer that was killed left it
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            _keep_readers(descriptor, target)
            os.fsync(descriptor)
        draft.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StartupFault(f"{path}: cannot be written: {error.strerror or error}") from None


def _keep_readers(descriptor: int, target: Path) -> None:
    try:
        old = target.stat()
    except FileNotFoundError:
        return
    if os.geteuid() == 0:
        os.fchown(descriptor, old.st_uid, old.st_gid)
    if os.fstat(descriptor).st_gid == old.st_gid:
        os.fchmod(descriptor, 0o600 | (old.st_mode & 0o040))
