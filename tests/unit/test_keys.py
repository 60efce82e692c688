"""API keys: their form, the file of their digests, and its writers."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.errors import StartupFault
from jubako.gate import keys, writing
from jubako.gate.keys import KeyRecord
from jubako.vocabulary import Scope

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(9000, 1, 1)).map(  # noqa: DTZ001 - it becomes UTC in the next call
    lambda time: time.replace(microsecond=0, tzinfo=UTC)
)
RECORDS = st.builds(
    KeyRecord,
    id=st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=12, max_size=12),
    tenant=st.sampled_from(["default", "a", "team-1.x"]),
    digest=st.text("0123456789abcdef", min_size=64, max_size=64),
    scopes=st.none() | st.lists(st.sampled_from(Scope)).map(tuple),
    created=TIMES,
    expires=st.none() | TIMES,
    revoked=st.none() | TIMES,
    name=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=keys.NAME_CHARACTERS),
)


def add(path: Path, **options: object) -> tuple[str, KeyRecord]:
    """A new key in the file."""
    key, record = keys.new("default", now=NOW, **options)  # type: ignore[arg-type]
    with keys.change(path) as records:
        records[record.id] = record
    return key, record


def test_a_key_says_its_id_and_nothing_kept_says_the_key(tmp_path: Path) -> None:
    """The file and the record hold the digest of the whole."""
    key, record = add(tmp_path / "keys.json", name="laptop")
    assert keys.key_id(key) == record.id
    assert keys.digest(key) == record.digest
    secret = key.split("_", 2)[2]
    assert len(secret) == 43
    assert secret not in (tmp_path / "keys.json").read_text() + repr(record)


@pytest.mark.parametrize(
    "text", ["", "jbk_", "jbk_abc_x", "xxx", "jbk_abcdefghijkl_" + "a" * 44, "jbk_ABCDEFGHIJKL_" + "a" * 43]
)
def test_other_text_is_no_key(text: str) -> None:
    """And has no id."""
    assert keys.key_id(text) is None


@given(st.lists(RECORDS, unique_by=lambda record: record.id))
def test_what_is_written_is_what_is_read(records: list[KeyRecord]) -> None:
    """Every field of every record, in order."""
    by_id = {record.id: record for record in records}
    read = keys.parse(keys.dump(by_id), Path("keys.json"))
    assert list(read.items()) == list(by_id.items())


@given(st.lists(RECORDS, min_size=1, max_size=3, unique_by=lambda record: record.id), st.data())
def test_a_truncated_file_is_always_a_fault(records: list[KeyRecord], data: st.DataObject) -> None:
    """Never a file with fewer keys."""
    content = keys.dump({record.id: record for record in records})
    cut = data.draw(st.integers(0, len(content) - 3))
    with pytest.raises(StartupFault):
        keys.parse(content[:cut], Path("keys.json"))


@given(RECORDS, TIMES)
def test_a_key_lives_until_it_expires_or_is_revoked(record: KeyRecord, now: datetime) -> None:
    """And neither can be put off."""
    assert keys.revoked(record, now).state(NOW) == "revoked"
    ended = keys.expiring(record, now)
    assert ended.expires is not None
    assert record.expires is None or ended.expires <= record.expires
    assert ended.state(now) != "live"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "short"}, r":3: keys\[0\].id"),
        ({"digest": "jbk_" + "s" * 56}, r":3: keys\[0\].digest"),
        ({"digest": 5}, r":3: keys\[0\].digest: must be text"),
        ({"created": "yesterday"}, "2026-01-31T12:00:00Z"),
        ({"expires": "2026-01-31"}, "2026-01-31T12:00:00Z"),
        ({"scopes": ["everything"]}, r"keys\[0\].scopes\[0\]"),
        ({"secret": "s" * 43}, r"keys\[0\].secret: unknown key"),
        ({"tenant": "../x"}, r"keys\[0\].tenant"),
    ],
)
def test_a_malformed_record_is_told_by_place_and_never_quoted(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """Somebody may have pasted a key where its digest belongs."""
    path = tmp_path / "keys.json"
    _, record = add(path)
    plain = keys.plain(record) | {"digest": record.digest} | change
    path.write_text('{"version": 1, "keys": [\n\n' + json.dumps(plain) + "]}")
    with pytest.raises(StartupFault, match=message) as raised:
        keys.load(path)
    assert str(path) in str(raised.value)
    assert "sss" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"version": 2, "keys": []}',
        b'{"version": 1, "version": 1, "keys": []}',
        b'{"version": 1, "keys": [], "more": 1}',
        b"[" * 100_000,
    ],
)
def test_garbage_is_a_fault_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    """A writer does not take it for an empty file."""
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(StartupFault, match=r"keys\.json"), keys.change(path):
        pass
    assert path.read_bytes() == content


def test_an_id_that_is_there_twice_is_a_fault(tmp_path: Path) -> None:
    """Which of the two was revoked could not be told."""
    _, record = add(tmp_path / "keys.json")
    line = keys.dump({record.id: record}).decode().splitlines()[1]
    with pytest.raises(StartupFault, match=f"{record.id} is there twice"):
        keys.parse(f'{{"version": 1, "keys": [{line}, {line}]}}'.encode(), tmp_path)


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o444, False), (0o666, True), (0o602, True)])
def test_a_file_that_all_may_write_is_refused(tmp_path: Path, mode: int, *, refused: bool) -> None:
    """Readable by all is how secrets are often mounted; writable by all is how they are replaced."""
    path = tmp_path / "keys.json"
    add(path)
    path.chmod(mode)
    if refused:
        with pytest.raises(StartupFault, match="chmod 600"):
            keys.load(path)
    else:
        assert keys.load(path)


def test_a_missing_file_is_a_fault_with_advice(tmp_path: Path) -> None:
    """It says how to make one."""
    with pytest.raises(StartupFault, match="jubako keys create"):
        keys.load(tmp_path / "keys.json")


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Its folder too, where that had to be made; a group that could read it still can."""
    path = tmp_path / "deep" / "keys.json"
    add(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o604)
    add(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    add(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(keys.load(path)) == 3


def test_a_change_that_raises_changes_nothing(tmp_path: Path) -> None:
    """Half an operation is none."""
    path = tmp_path / "keys.json"
    add(path)
    before = path.read_bytes()

    def fail_halfway() -> None:
        with keys.change(path) as records:
            records.clear()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert path.read_bytes() == before


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    """What it points to is replaced."""
    add(tmp_path / "real" / "keys.json")
    (tmp_path / "keys.json").symlink_to(tmp_path / "real" / "keys.json")
    add(tmp_path / "keys.json")
    assert (tmp_path / "keys.json").is_symlink()
    assert len(keys.load(tmp_path / "real" / "keys.json")) == 2


def _add_many(path: Path, count: int) -> None:
    for _ in range(count):
        add(path)


def test_no_writer_loses_what_another_wrote(tmp_path: Path) -> None:
    """Several processes at once, each reading, changing and writing."""
    path = tmp_path / "keys.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(path, 10)) for _ in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(keys.load(path)) == 60


def test_a_lock_that_is_never_given_back_is_a_fault(tmp_path: Path) -> None:
    """With the name of the lock."""
    path = tmp_path / "keys.json"
    with writing.lock(path):
        with pytest.raises(StartupFault, match=r"\.keys\.json\.lock"), writing.lock(path, wait_seconds=0.05):
            pass
        assert not path.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from jubako.gate import keys
from tests.unit.test_keys import add

at, count = sys.argv[2], 0

def kill(event, arguments):
    if event == at:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill) if at.startswith("os.") else setattr(os, at, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
add(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("step", ["fsync", "fchmod", "os.rename", "os.remove"])
def test_a_writer_that_is_killed_leaves_the_old_file_and_no_lock(tmp_path: Path, step: str) -> None:
    """Whatever step it was in; the next writer goes on."""
    path = tmp_path / "keys.json"
    _, first = add(path)
    if step == "os.remove":
        (tmp_path / ".keys.json.new").write_text("left by another that was killed")
    repository = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), step],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": f"{Path(keys.__file__).parents[2]}:{repository}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == -9, ended.stderr
    assert list(keys.load(path)) == [first.id]
    _, second = add(path)
    assert list(keys.load(path)) == [first.id, second.id]
    assert not (tmp_path / ".keys.json.new").exists()


def test_times_are_whole_seconds_of_utc(tmp_path: Path) -> None:
    """Whatever zone they were said in."""
    _, record = add(tmp_path / "keys.json", expires=NOW.astimezone() + timedelta(seconds=1.5))
    assert keys.plain(record)["expires"] == "2026-01-31T12:00:01Z"
    assert keys.load(tmp_path / "keys.json")[record.id] == record
