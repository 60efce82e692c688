"""The place where files wait until they are proven: beside the model store, on its filesystem, one user at a time.

Owns the lock, the removal of what killed runs left, free space, and progress on the terminal. Knows nothing of sources.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from jubako.errors import StartupFault
from jubako.release.digests import Progress

FILE_MODE, FOLDER_MODE = 0o644, 0o755
SPARE_BYTES = 64 * 1024 * 1024
"""Left free beyond what we write, so that other programs on the machine do not fail first."""
DOWNLOADS = "downloads"
_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextlib.contextmanager
def staging(home: Path) -> Iterator[Path]:
    """An empty folder below `home` (created if absent), gone afterwards; waits for other processes' staging.

    `home/downloads` survives, so that a broken download continues where it stopped. Raises `StartupFault` if the
    folder cannot be written or the disk is full.
    """
    with _writable(home):
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _take(lock)
            for left in home.iterdir():  # we hold the lock: whoever made these is dead
                if left.is_dir() and left.name != DOWNLOADS:
                    shutil.rmtree(left)
            work = Path(tempfile.mkdtemp(dir=home))
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
        finally:
            os.close(lock)


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise `StartupFault` unless the filesystem of `folder` has room for `needed_bytes` and a little more."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        raise StartupFault(
            f"{folder}: not enough disk space: {_mebibytes(needed_bytes + SPARE_BYTES)} needed, "
            f"{_mebibytes(free)} free. Free some, or set BENTOML_HOME to a larger disk."
        )


def place(source: Path, target: Path) -> None:
    """Move `source` to `target`; copy it only if they are on different filesystems. Parents are created."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copyfile(source, target)
        source.unlink()


def settle_modes(folder: Path) -> None:
    """Give every file 0644 and every folder 0755, whatever the umask was: a container's user must read them."""
    folder.chmod(FOLDER_MODE)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)


@contextlib.contextmanager
def progress(label: str, total: int, unit: str = "B") -> Iterator[Progress]:
    """A bar on stderr if that is a terminal, one plain line otherwise. The callable may be used by many threads."""
    if not sys.stderr.isatty():
        size = f" ({_mebibytes(total)})" if unit == "B" and total else ""
        print(f"{label}{size}", file=sys.stderr, flush=True)
        yield lambda _: None
        return
    from tqdm import tqdm

    lock = threading.Lock()
    with tqdm(total=total or None, desc=label, unit=unit, unit_scale=unit == "B", file=sys.stderr) as bar:

        def advance(count: int) -> None:
            with lock:
                bar.update(count)

        yield advance


@contextlib.contextmanager
def _writable(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StartupFault(
                f"{home}: the disk is full (or the quota is used up); nothing was stored. Free some space, or set "
                "BENTOML_HOME to a larger disk, and run the command again."
            ) from error
        where = error.filename or home
        raise StartupFault(f"{where}: {error.strerror or error}; the release could not be staged") from error


def _take(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another `jubako release` is working here; waiting for it", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def _mebibytes(count: int) -> str:
    return f"{count / 1024**2:.0f} MiB"
