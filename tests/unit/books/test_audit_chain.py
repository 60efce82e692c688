"""The audit's chain: what is untouched has no faults, and any change shows, with its place."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jubako.books import journal
from jubako.books.journal import Position, Reader
from jubako.books.line import fields
from jubako.books.verify import Verification, verify_files, verify_folder
from tests.accounts import STARTED_AT, account, faults, lines, only_file, opened, written

pytestmark = pytest.mark.usefixtures("no_ticks")


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
