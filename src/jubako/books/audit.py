"""The audit: one line for each request that got its end, on record before the caller has the last bytes of the reply.

It is also the write-ahead journal of the ledger: what is not here is nowhere, what is here is booked sooner or later.
One `write` puts a line into the operating system's hands, where it survives the death of this process; a thread has it
on disk within a second, for power cuts, and moves the head after it. Knows nothing of the database.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from pathlib import Path

from jubako.books import journal
from jubako.books.journal import Head, Position
from jubako.books.line import Clockface, encode
from jubako.books.tail import End, Lock, find_end
from jubako.errors import StartupFault
from jubako.vocabulary import Account, Outcome

logger = logging.getLogger(__name__)

SYNC_SECONDS = 1.0
"""What a power cut can take, at most; and how soon a disk that can be written again is noticed."""
PROBE_BYTES = 64 * 1024


class AuditFault(Exception):
    """The line could not be written. The request that it is about must not look as if all was well."""


class Audit:
    """The one writer of a journal. `append` is for the event loop; everything slow is in a thread of its own."""

    def __init__(self, folder: Path, lock: Lock, end: End, *, file_bytes: int, keep_files: int) -> None:
        self.folder = folder
        self.journal = end.head.journal
        self._lock = lock
        self._file_bytes = file_bytes
        self._keep_files = keep_files
        self._clockface = Clockface()
        self._position = end.position
        self._path = end.path
        self._descriptor = _open(end.path)
        self._size = end.size
        self._ragged = False
        """Whether bytes of an unfinished line may stand at the end of the file."""
        self._fault = ""
        self._failures = 0
        self._unrecorded = 0
        self._doubtful = end.position.sequence > end.head.sequence
        """Whether the disk may not have taken what was written, and the system have forgotten that it still must."""
        self._retired: deque[int] = deque()
        self._first = end.head.first
        self._durable = Position(end.head.sequence, end.head.hash)
        self._closed = False
        self._writing = threading.Lock()
        """Held by each write, some microseconds: `close` must not take the file from under it."""
        self._syncing = threading.Lock()
        self._anchoring = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_on_disk, name="audit-sync", daemon=True)

    @classmethod
    def open(cls, folder: Path, *, file_bytes: int, keep_files: int) -> Audit:
        """Take the journal in `folder` for this process. Reads its last file once; raises `StartupFault`."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = Lock(folder)
            try:
                audit = cls(folder, lock, find_end(folder), file_bytes=file_bytes, keep_files=keep_files)
                audit.sync()  # a disk that cannot be written refuses the start, not the first request
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise StartupFault(f"books.audit_folder: {folder}: {error.strerror or error}") from None
        if audit.fault:
            audit.close()
            raise StartupFault(f"books.audit_folder: {folder}: {audit.fault}")
        audit._thread.start()
        return audit

    # -- what is so

    @property
    def fault(self) -> str:
        """Why lines cannot be written now; empty while they can."""
        return self._fault

    @property
    def position(self) -> Position:
        """The last line written."""
        return self._position

    @property
    def durable(self) -> Position:
        """The last line known to be on disk."""
        return self._durable

    @property
    def unrecorded(self) -> int:
        """Accounts that could not be written since the start; each is in the log.

        Without those that were refused: a full disk refuses every request that comes, and they used nothing.
        """
        return self._unrecorded

    # -- in the event loop

    def append(self, account: Account) -> None:
        """Put the account on record; raises `AuditFault` if it is not. Takes some microseconds."""
        with self._writing:
            if self._closed:
                self._failed(account, "the audit is closed")
                raise AuditFault(self._fault)
            self._append(account)

    def _append(self, account: Account) -> None:
        before = self._position
        sequence = before.sequence + 1
        at = self._clockface.text(account.ended_at)
        line, digest = encode(account, at, self.journal, sequence, before.hash)
        try:
            if self._ragged:
                os.ftruncate(self._descriptor, self._size)
                self._ragged = False
            if self._size and self._size + len(line) > self._file_bytes:
                self._rotate(sequence)
            self._ragged = True
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError(0, f"{written} of {len(line)} bytes were taken: the disk is full")
            self._ragged = False
        except OSError as error:
            self._failed(account, error.strerror or str(error))
            raise AuditFault(self._fault) from None
        self._size += len(line)
        self._position = Position(sequence, digest)

    def _rotate(self, first: int) -> None:
        """Go on in a new file. The thread has the old one on disk and closes it."""
        path = journal.file_path(self.folder, first)
        descriptor = _open(path)
        self._retired.append(self._descriptor)
        self._path, self._descriptor, self._size = path, descriptor, 0

    def _failed(self, account: Account, why: str) -> None:
        if self._ragged:
            try:
                os.ftruncate(self._descriptor, self._size)
                self._ragged = False
            except OSError:
                pass  # the next line tries again before it is written
        self._failures += 1
        self._unrecorded += account.outcome is not Outcome.REFUSED
        self._fault = why
        # The log is the last place left: what was used must not vanish without a trace.
        logger.error(
            "audit: not recorded (%s): request=%s tenant=%s key=%s outcome=%s prompt_tokens=%d generated_tokens=%d",
            why,
            account.request_id,
            account.tenant,
            account.key_id,
            account.outcome.value,
            account.usage.prompt_tokens,
            account.usage.generated_tokens,
        )

    # -- in other threads

    def _keep_on_disk(self) -> None:
        while not self._closing.wait(SYNC_SECONDS):
            self.sync()

    def sync(self) -> None:
        """Have what was written on disk, move the head after it, and find out whether the disk can be written again."""
        with self._syncing:
            if self._descriptor >= 0:
                self._sync()

    def _sync(self) -> None:
        failures, fault = self._failures, self._fault
        position, descriptor = self._position, self._descriptor
        retired = [self._retired.popleft() for _ in range(len(self._retired))]
        doubtful, self._doubtful = self._doubtful, True
        try:
            for one in {*retired, descriptor}:
                if doubtful:
                    _write_again(one)
                os.fsync(one)
            self._doubtful = False
            if fault:
                self._probe()
            if position != self._durable or fault:
                with self._anchoring:
                    self._write_head(position)
        except OSError as error:
            if not fault:
                logger.error("audit: %s: %s; new requests are refused until it can", self.folder, error.strerror)
            self._failures += 1
            self._fault = error.strerror or str(error)
            self._retired.extendleft(reversed(retired))
            return
        for one in retired:
            os.close(one)
        if fault and failures == self._failures:
            self._fault = ""
            logger.warning(
                "audit: can be written again; %d accounts since the start are in the log only", self._unrecorded
            )

    def _write_head(self, position: Position) -> None:
        journal.write_head(self.folder, Head(self.journal, self._first, position.sequence, position.hash))
        self._durable = position

    def _probe(self) -> None:
        """Room for some lines is room for the next."""
        path = self.folder / "probe"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            left = PROBE_BYTES
            while left > 0:
                left -= os.write(descriptor, bytes(left))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            path.unlink()

    def prune(self, taken: int) -> None:
        """Remove the oldest files beyond the number to keep, as far as all their lines are `taken`.

        The head is moved first: a file that is there although the head begins later does no harm, one that is missing
        although the head begins earlier would look like a theft.
        """
        kept = journal.files(self.folder)
        excess = kept[: max(len(kept) - self._keep_files, 0)]
        gone = [one for one, following in zip(excess, kept[1:], strict=False) if following.first <= taken + 1]
        if not gone:
            return
        with self._anchoring:
            if self._closed:
                return  # the next server may have the folder
            self._first = kept[len(gone)].first
            self._write_head(self._durable)
        for one in gone:
            one.path.unlink()

    def close(self) -> None:
        """Have everything on disk and let go of the journal; what is appended after that is a fault."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._anchoring, self._writing:
            if self._closed:
                return
            self._closed = True
        with self._syncing:
            self._sync()
            descriptors, self._descriptor = (*self._retired, self._descriptor), -1
            self._retired.clear()
            for one in descriptors:
                os.close(one)
        self._lock.release()


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _write_again(descriptor: int) -> None:
    """Give the whole lines of a file to the system once more.

    After a failed `fsync` Linux takes what could not be written for written: the next one would succeed and the lines
    be gone with the next reboot. Whole lines never change, so that this may be done beside `append`.
    """
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)  # without O_APPEND
    try:
        offset = 0
        for chunk in journal.lines(again):
            data = b"".join(chunk)
            if os.pwrite(again, data, offset) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            offset += len(data)
    finally:
        os.close(again)
