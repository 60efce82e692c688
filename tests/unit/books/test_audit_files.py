"""The audit's files from a start to an end: one writer, nothing removed too early, nothing lost without a word."""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from jubako.books import journal
from jubako.books.audit import Audit, AuditFault
from jubako.books.journal import Head
from jubako.books.line import link
from jubako.errors import StartupFault
from tests.accounts import account, faults, lines, only_file, opened, written

pytestmark = pytest.mark.usefixtures("no_ticks")


def test_files_are_removed_only_once_the_ledger_has_them(tmp_path: Path) -> None:
    """However many there are; and what is left still verifies, with its beginning known."""
    audit = opened(tmp_path, file_bytes=8192, keep_files=2)
    for number in range(100):
        audit.append(account(number))
    before = journal.files(tmp_path)
    audit.prune(0)
    assert journal.files(tmp_path) == before
    audit.prune(before[2].first - 2)
    assert journal.files(tmp_path) == before[1:], "the line before the third file is not taken: the second stays"
    audit.prune(100)
    assert journal.files(tmp_path) == before[-2:]
    audit.close()
    assert faults(tmp_path) == []
    before[-2].path.unlink()
    assert "are missing before it" in faults(tmp_path)[0]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """Two writers would break each other's chain."""
    audit = opened(tmp_path)
    script = f"from tests.accounts import opened; from pathlib import Path; opened(Path({str(tmp_path)!r}))"
    second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert "another process writes" in second.stderr
    with pytest.raises(StartupFault, match="another process writes"):
        opened(tmp_path)
    audit.close()
    opened(tmp_path).close()


def test_a_forked_child_does_not_keep_the_journal(tmp_path: Path) -> None:
    """An engine's process that outlives a killed server must not keep the next one from starting."""
    audit = opened(tmp_path)
    context = multiprocessing.get_context("fork")
    begun, stay = context.Event(), context.Event()
    child = context.Process(target=_begin_and_stay, args=(begun, stay))
    child.start()
    assert begun.wait(60)
    audit.close()
    opened(tmp_path).close()
    stay.set()
    child.join()


def _begin_and_stay(begun: Event, stay: Event) -> None:
    begun.set()
    stay.wait()


# -- starts


def torn(folder: Path, tail: bytes) -> None:
    """Put `tail` behind the last line."""
    with journal.files(folder)[-1].path.open("ab") as file:
        file.write(tail)


@pytest.mark.parametrize("tail", [b"{", b'{"time":"2026-09', bytes(700), b"\xff" * 100_000, b"half a line\nand more"])
def test_a_torn_end_is_set_aside_and_the_chain_goes_on(
    tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is dropped without a word: the bytes are kept, and the log says where."""
    written(tmp_path, 5)
    torn(tmp_path, tail)
    assert faults(tmp_path)
    written(tmp_path, 2)
    (aside,) = tmp_path.glob("torn-*")
    assert aside.read_bytes() == tail
    assert str(aside) in caplog.text
    assert faults(tmp_path) == []
    assert [link(line).sequence for line in lines(tmp_path)] == list(range(1, 8))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda file: file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1])), "ends at line 8"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "ends at line 8"),
        (lambda file: file.write_bytes(file.read_bytes().replace(b"request-3", b"request-x")), ":4: was altered"),
        (lambda file: file.unlink(), "the audit files are gone"),
        (lambda file: file.write_bytes(b""), "ends at line 0"),
        (lambda file: (file.parent / "head.json").unlink(), "head.json is missing"),
        (lambda file: (file.parent / "head.json").write_text("{}"), "is not the head"),
    ],
)
def test_a_start_refuses_an_audit_that_lost_what_was_on_disk(tmp_path: Path, harm, said: str) -> None:
    """It says what is wrong and what to do; nothing is written over."""
    written(tmp_path, 9)
    harm(only_file(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StartupFault, match=said) as raised:
        opened(tmp_path)
    assert "jubako audit verify" in str(raised.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_process_killed_between_making_a_file_and_using_it_leaves_a_right_journal(tmp_path: Path) -> None:
    """The new file is empty; the chain goes on from the file before."""
    written(tmp_path, 9)
    journal.file_path(tmp_path, 10).touch()
    written(tmp_path, 1)
    assert faults(tmp_path) == []
    assert link(lines(tmp_path)[-1]).sequence == 10


def test_lines_after_the_head_are_kept(tmp_path: Path) -> None:
    """The head is up to a second old when a process is killed."""
    written(tmp_path, 9)
    head = journal.read_head(tmp_path)
    assert head is not None
    fourth = link(lines(tmp_path)[3])
    journal.write_head(tmp_path, Head(head.journal, 1, 4, fourth.hash))
    written(tmp_path, 1)
    assert link(lines(tmp_path)[-1]).sequence == 10
    assert faults(tmp_path) == []


# -- the end


def test_what_comes_after_the_end_is_a_fault_and_touches_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of its file may be another file's by then, and the folder another server's."""
    audit = opened(tmp_path / "audit", file_bytes=1, keep_files=1)
    for number in range(3):
        audit.append(account(number))
    audit.close()
    audit.close()
    before = {path.name: path.read_bytes() for path in audit.folder.iterdir()}
    with (tmp_path / "other").open("wb", buffering=0), pytest.raises(AuditFault, match="is closed"):
        audit.append(account(3))
    audit.prune(3)
    audit.sync()
    assert {path.name: path.read_bytes() for path in audit.folder.iterdir()} == before
    assert (tmp_path / "other").read_bytes() == b""
    assert "audit: not recorded (the audit is closed): request=request-3 " in caplog.text
    assert audit.unrecorded == 1
    opened(audit.folder).close()


def test_an_end_in_the_middle_of_lines_breaks_none_of_them(tmp_path: Path) -> None:
    """Each line is on record or refused; those on record are whole and in their place."""
    for turn in range(20):
        audit = opened(tmp_path / str(turn), file_bytes=4096, keep_files=100)
        recorded = 0
        begun = threading.Event()

        def write(audit: Audit = audit, begun: threading.Event = begun) -> None:
            nonlocal recorded
            with contextlib.suppress(AuditFault):
                while True:
                    audit.append(account(recorded))
                    recorded += 1
                    begun.set()

        writer = threading.Thread(target=write)
        writer.start()
        begun.wait()
        audit.close()
        writer.join()
        assert len(lines(audit.folder)) == recorded
        assert faults(audit.folder) == []
