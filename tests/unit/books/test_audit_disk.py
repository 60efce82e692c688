"""A disk that is full or fails: no half line, nothing unrecorded without a word, and the chain goes on once it does."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jubako.books import journal
from jubako.books.audit import Audit, AuditFault
from jubako.books.journal import Head
from jubako.books.line import fields, link
from jubako.errors import StartupFault
from tests.accounts import account, faults, lines, opened

pytestmark = pytest.mark.usefixtures("no_ticks")


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    """One that is closed at the end."""
    made = opened(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("taken", [0, 1, 100, None])
def test_what_cannot_be_written_is_a_fault_and_leaves_no_half_line(
    audit: Audit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, taken: int | None
) -> None:
    """The caller is told, the log has the account, and the chain goes on once the disk does."""
    audit.append(account(1))
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if taken is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:taken])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(AuditFault):
        audit.append(account(2))
    monkeypatch.undo()
    assert audit.fault
    assert audit.unrecorded == 1
    assert "request=request-2 tenant=beta" in caplog.text
    audit.append(account(3))
    audit.sync()
    assert not audit.fault
    assert [fields(line)["request_id"] for line in lines(audit.folder)] == ["request-1", "request-3"]
    assert faults(audit.folder) == []


def test_a_disk_that_cannot_sync_refuses_requests_until_it_can(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not on disk may be lost: no new request is taken on."""

    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    audit.append(account())
    monkeypatch.setattr(os, "fsync", broken)
    audit.sync()
    assert "error" in audit.fault
    monkeypatch.undo()
    audit.sync()
    assert not audit.fault
    assert audit.durable == audit.position


def test_what_a_disk_failed_to_take_is_given_to_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux takes pages for written that it failed to write: an `fsync` that succeeds later says nothing of them.

    Of every file that the failure may have hit, and at a start that finds lines that nobody had on disk.
    """
    written_again: list[bytes] = []
    real_write, real_sync = os.pwrite, os.fsync

    def note(descriptor: int, data: bytes, offset: int) -> int:
        written_again.append(data)
        return real_write(descriptor, data, offset)

    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", note)
    audit = opened(tmp_path, file_bytes=8192)
    for number in range(30):
        audit.append(account(number))
    assert len(journal.files(tmp_path)) > 1
    monkeypatch.setattr(os, "fsync", broken)
    audit.sync()
    audit.sync()
    assert audit.fault
    monkeypatch.setattr(os, "fsync", real_sync)
    written_again.clear()
    audit.sync()
    assert not audit.fault
    assert sorted(written_again) == sorted(one.path.read_bytes() for one in journal.files(tmp_path))
    written_again.clear()
    audit.append(account(30))
    audit.sync()
    audit.close()
    opened(tmp_path, file_bytes=8192).close()
    assert written_again == []
    assert faults(tmp_path) == []
    first = journal.files(tmp_path)[0]
    journal.write_head(tmp_path, Head(audit.journal, 1, 1, link(lines(tmp_path)[0]).hash))
    opened(tmp_path, file_bytes=8192).close()
    assert written_again == [journal.files(tmp_path)[-1].path.read_bytes()]
    assert first == journal.files(tmp_path)[0]
    assert faults(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted by root only")
def test_a_real_full_disk_is_survived(tmp_path: Path) -> None:
    """Filled by another, emptied again."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not allow to mount")
    try:
        audit = opened(folder / "audit", file_bytes=1 << 20)
        with pytest.raises(AuditFault):
            _fill(audit)
        recorded = audit.position.sequence
        assert 0 < recorded < 1000
        audit.sync()
        assert audit.fault
        subprocess.run(["mount", "-o", "remount,size=1m", str(folder)], check=True)
        audit.sync()
        assert not audit.fault
        audit.append(account(5000))
        audit.close()
        assert faults(folder / "audit") == []
        assert len(lines(folder / "audit")) == recorded + 1
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _fill(audit: Audit) -> None:
    for number in range(1000):
        audit.append(account(number))


def test_an_audit_that_cannot_be_written_refuses_the_start(tmp_path: Path) -> None:
    """With the setting's name."""
    (tmp_path / "file").touch()
    with pytest.raises(StartupFault, match=r"books\.audit_folder"):
        opened(tmp_path / "file" / "audit")
