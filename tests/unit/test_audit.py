"""The audit: what was written is found, and what was changed shows."""

from __future__ import annotations

import collections
import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jubako.books import journal
from jubako.books.audit import Audit, AuditFault
from jubako.books.journal import Head, Position, Reader
from jubako.books.line import MAX_BYTES, encode, fields, link
from jubako.books.verify import Verification, verify_files, verify_folder
from jubako.errors import StartupFault
from jubako.vocabulary import Outcome, Usage
from tests.accounts import STARTED_AT, account, opened, written


def faults(folder: Path) -> list[str]:
    """What verification says."""
    return list(verify_folder(folder, Verification()))


@pytest.fixture(autouse=True)
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced but by a test's own `sync`, however slow the machine is between two of its lines."""
    monkeypatch.setattr("jubako.books.audit.SYNC_SECONDS", 3600)


def lines(folder: Path) -> list[bytes]:
    """Every line of the journal."""
    return b"".join(one.path.read_bytes() for one in journal.files(folder)).splitlines(keepends=True)


def only_file(folder: Path) -> Path:
    """The one file of a journal that has one."""
    (file,) = journal.files(folder)
    return file.path


# -- one line


def test_a_line_holds_the_contract_s_fields_and_no_others(tmp_path: Path) -> None:
    """In JSON that anything can read, chained to the line before."""
    written(tmp_path, 2)
    first, second = (json.loads(line) for line in lines(tmp_path))
    assert first == {
        "time": "2026-09-21T14:13:20.000Z",
        "journal": first["journal"],
        "sequence": 1,
        "previous": "0" * 64,
        "request_id": "request-0",
        "tenant": "alpha",
        "key_id": "key-1",
        "alias": "tiny",
        "adapter": False,
        "release": "d" * 64,
        "route": "chat_completions",
        "stream": True,
        "status": 200,
        "outcome": "completed",
        "code": "",
        "priority": 1,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "generated_tokens": 0,
        "queue_seconds": 0.001,
        "first_token_seconds": 0.2,
        "total_seconds": 1.5,
        "hash": first["hash"],
    }
    assert second["previous"] == first["hash"]
    assert second["time"] == "2026-09-21T14:13:20.250Z"


def test_the_hash_is_that_of_the_line_without_it(tmp_path: Path) -> None:
    """So that an auditor can check it with any tool."""
    written(tmp_path, 1)
    (line,) = lines(tmp_path)
    told = json.loads(line)["hash"]
    without = line.rstrip(b"\n").replace(f',"hash":"{told}"'.encode(), b"")
    assert hashlib.sha256(without).hexdigest() == told


@given(text=st.text(st.characters(), max_size=300), seconds=st.floats(), tokens=st.integers(0, 1 << 62))
def test_whatever_an_id_holds_the_line_is_one_line_of_json(text: str, seconds: float, tokens: int) -> None:
    """Ids out of an identity provider's tokens are not ours to choose."""
    made = account(tenant=text, key_id=text, alias=text, code=text, total_seconds=seconds, usage=Usage(tokens))
    line, digest = encode(made, "2026-09-21T14:13:20.000Z", "0" * 16, 1, "0" * 64)
    assert link(line).hash == digest
    assert line.count(b"\n") == 1
    assert len(line) <= MAX_BYTES
    assert fields(line)["key_id"] == text[:256]
    assert fields(line)["prompt_tokens"] == tokens


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_is_written_by_its_name(tmp_path: Path, outcome: Outcome) -> None:
    """One word everywhere."""
    audit = opened(tmp_path)
    audit.append(account(outcome=outcome))
    audit.close()
    assert json.loads(lines(tmp_path)[0])["outcome"] == outcome.value


# -- the chain


def test_an_untouched_journal_has_no_faults(tmp_path: Path) -> None:
    """Over several files and several starts."""
    for _ in range(3):
        written(tmp_path, 40, file_bytes=8192)
    assert len(journal.files(tmp_path)) > 5
    count = Verification()
    assert list(verify_folder(tmp_path, count)) == []
    assert count.lines == 120


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of nine lines, to be copied."""
    return written(tmp_path_factory.mktemp("intact"), 9)


Mutation = st.one_of(
    st.tuples(st.just("byte"), st.integers(0, 1 << 30), st.integers(1, 255)),
    st.tuples(st.just("insert"), st.integers(0, 1 << 30), st.integers(0, 255)),
    st.tuples(st.just("delete"), st.integers(0, 1 << 30), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("swap"), st.integers(0, 8), st.integers(1, 8)),
    st.tuples(st.just("double"), st.integers(0, 8), st.integers(0, 9)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 30), st.just(0)),
)


def mutated(data: bytes, kind: str, at: int, by: int) -> bytes:
    """`data` with one thing changed."""
    rows = data.splitlines(keepends=True)
    place = at % len(data)
    if kind == "byte":
        return data[:place] + bytes([data[place] ^ by]) + data[place + 1 :]
    if kind == "insert":
        return data[:place] + bytes([by]) + data[place:]
    if kind == "delete":
        return data[:place] + data[place + 1 :]
    if kind == "cut":
        return data[:place]
    if kind == "remove":
        del rows[at]
    elif kind == "swap":
        other = (at + by) % len(rows)
        rows[at], rows[other] = rows[other], rows[at]
    else:
        rows.insert(by, rows[at])
    return b"".join(rows)


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(mutation=Mutation)
def test_any_single_change_is_found(intact: Path, tmp_path: Path, mutation: tuple[str, int, int]) -> None:
    """By the verification, and by whoever follows the journal to book it, unless nothing is missing yet."""
    original = only_file(intact).read_bytes()
    changed = mutated(original, *mutation)
    copy = tmp_path / only_file(intact).name
    copy.write_bytes(changed)
    (tmp_path / "head.json").write_bytes((intact / "head.json").read_bytes())
    assert changed != original
    assert faults(tmp_path)
    reader = Reader(tmp_path, json.loads((intact / "head.json").read_bytes())["journal"], Position())
    with pytest.raises(journal.BrokenJournal):
        collections.deque(iter(lambda: reader.read(9), []), maxlen=0)
    reader.close()


def test_every_byte_counts(intact: Path, tmp_path: Path) -> None:
    """The lowest bit of each byte in turn, in the middle line."""
    rows = only_file(intact).read_bytes().splitlines(keepends=True)
    copy = tmp_path / only_file(intact).name
    (tmp_path / "head.json").write_bytes((intact / "head.json").read_bytes())
    for place in range(len(rows[4])):
        line = rows[4]
        copy.write_bytes(b"".join([*rows[:4], line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :], *rows[5:]]))
        assert any(":5: " in one for one in faults(tmp_path)), place


def rewritten(line: bytes, **changes: object) -> bytes:
    """The line with other fields and a hash that is right for them: what a careful forger does."""
    data = json.loads(line) | changes
    del data["hash"]
    body = json.dumps(data, separators=(",", ":")).encode()
    return body[:-1] + b',"hash":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: [*rows[:3], rows[3].replace(b"alpha", b"omega"), *rows[4:]], ":4: was altered"),
        (
            lambda rows: [*rows[:3], rewritten(rows[3], prompt_tokens=0), *rows[4:]],
            ":5: does not follow the line before",
        ),
        (lambda rows: [*rows[:3], *rows[4:]], ":4: is line 5 of the journal; missing before it: 4"),
        (lambda rows: [*rows[:2], *rows[5:]], ":3: is line 6 of the journal; missing before it: 3 to 5"),
        (lambda rows: [*rows[:3], rows[4], rows[3], *rows[5:]], ":5: is line 4 of the journal again, or out of order"),
        (lambda rows: [*rows[:4], rows[3], *rows[4:]], ":5: is line 4 of the journal again, or out of order"),
        (lambda rows: rows[:-2], ": ends with line 7; lines 8 to 9 were cut off"),
        (lambda rows: [*rows[:-1], rows[-1][:-10]], ":9: is cut off within the line"),
        (lambda rows: [*rows[:-1], rewritten(rows[-1], status=500)], ": line 9 is not the one that head.json names"),
        (lambda rows: rows[1:], ":1: is line 2 of the journal, not 1 as the file's name says"),
        (lambda rows: [*rows[:3], b"\n", *rows[3:]], ":4: is not a whole line of an audit"),
        (lambda rows: [rewritten(row, journal="f" * 16) for row in rows[:1]] + rows[1:], ":1: belongs to journal ffff"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(intact: Path, tmp_path: Path, change, said: str) -> None:
    """File, line, and what an auditor would want to know."""
    copy = tmp_path / only_file(intact).name
    copy.write_bytes(b"".join(change(only_file(intact).read_bytes().splitlines(keepends=True))))
    (tmp_path / "head.json").write_bytes((intact / "head.json").read_bytes())
    assert any(f"{copy}{said}" in one for one in faults(tmp_path)), faults(tmp_path)


def test_a_missing_file_shows_wherever_it_was(tmp_path: Path) -> None:
    """At the beginning, in the middle, at the end; and a head that is gone is itself a fault."""
    written(tmp_path, 60, file_bytes=8192)
    kept = journal.files(tmp_path)
    assert len(kept) >= 4
    for gone in (kept[0], kept[1], kept[-1]):
        content = gone.path.read_bytes()
        gone.path.unlink()
        assert faults(tmp_path), gone
        gone.path.write_bytes(content)
    assert faults(tmp_path) == []
    (tmp_path / "head.json").unlink()
    assert "no head.json" in faults(tmp_path)[0]


def test_single_files_are_verified_as_one_chain(tmp_path: Path) -> None:
    """For lines that were shipped elsewhere."""
    written(tmp_path, 60, file_bytes=8192)
    paths = [one.path for one in journal.files(tmp_path)]
    assert list(verify_files(paths[1:], Verification())) == []
    assert list(verify_files([paths[0], paths[2]], Verification())) != []


def test_a_journal_can_be_verified_while_it_is_written(tmp_path: Path) -> None:
    """And pruned."""
    audit = opened(tmp_path, file_bytes=8192, keep_files=2)
    for number in range(200):
        audit.append(account(number))
        if number % 10 == 0:
            audit.sync()
            assert faults(tmp_path) == []
        if number % 50 == 0:
            audit.prune(number)
    audit.close()


@pytest.mark.parametrize("opens", [0, 1, 2, 4])
def test_files_that_are_removed_under_verification_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: int
) -> None:
    """Between the head and the list of files, or between two files: they were booked, and the head says so."""
    audit = opened(tmp_path, file_bytes=8192, keep_files=2)
    for number in range(60):
        audit.append(account(number))
    audit.sync()
    assert len(journal.files(tmp_path)) >= 5
    opened_so_far = 0
    list_files, reading = journal.files, journal.reading

    def remove() -> None:
        for number in range(60, 120):
            audit.append(account(number))
        audit.sync()
        monkeypatch.setattr(journal, "files", list_files)
        audit.prune(120)

    def listed(folder: Path) -> list[journal.JournalFile]:
        remove()
        return list_files(folder)

    def read(path: Path) -> contextlib.AbstractContextManager[int]:
        nonlocal opened_so_far
        opened_so_far += 1
        if opened_so_far == opens:
            remove()
        return reading(path)

    monkeypatch.setattr(journal, "files" if opens == 0 else "reading", listed if opens == 0 else read)
    assert faults(tmp_path) == []
    assert len(list_files(tmp_path)) == 2
    audit.close()
    list_files(tmp_path)[0].path.unlink()
    assert "are missing before it" in faults(tmp_path)[0]


def test_a_clock_that_is_set_back_breaks_nothing(tmp_path: Path) -> None:
    """The order is the sequence; a time is what the clock said then."""
    audit = opened(tmp_path)
    for seconds in (0, 3600, -3600, 0.9994, 0.9996):
        audit.append(account(ended_at=STARTED_AT + seconds))
    audit.close()
    assert [fields(line)["time"][11:] for line in lines(tmp_path)] == [
        "14:13:20.000Z",
        "15:13:20.000Z",
        "13:13:20.000Z",
        "14:13:20.999Z",
        "14:13:20.999Z",
    ]
    assert faults(tmp_path) == []
    opened(tmp_path).close()


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


# -- files


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


# -- a disk that takes nothing


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
