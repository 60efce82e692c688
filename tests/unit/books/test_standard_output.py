"""The audit's copy on standard output: whole, in order, and never waited for."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jubako.books import journal
from jubako.books.echo import Echo
from tests.accounts import opened
from tests.ledgers import append, audited
from tests.project import REPOSITORY, until


def test_the_audit_is_copied_to_standard_output_too(tmp_path: Path) -> None:
    """Byte for byte, so that it can be verified where it is collected."""
    script = (
        "import asyncio; from pathlib import Path; from jubako.books.books import Books;"
        "from tests.accounts import account; from tests.ledgers import settings;"
        f"books = Books.open(settings(audit_standard_output=True), Path({str(tmp_path)!r}), '');"
        "[books.record(account(number)) for number in range(500)]; asyncio.run(books.close())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 501))
    assert lines[-1] == audited(tmp_path / "books" / "audit")[-1]


def test_a_reader_of_standard_output_who_stops_holds_nothing_up(tmp_path: Path) -> None:
    """The pipe is full after the first hundred lines; five thousand are recorded all the same."""
    script = (
        "import sys; from pathlib import Path; from jubako.books.books import Books;"
        "from tests.accounts import account; from tests.ledgers import settings;"
        f"books = Books.open(settings(audit_standard_output=True), Path({str(tmp_path)!r}), '');"
        "[books.record(account(number)) for number in range(5000)]; sys.stderr.write('done'); sys.stderr.flush();"
        "sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stderr is not None
        assert child.stderr.read(4) == b"done"
        child.kill()
    assert len(audited(tmp_path / "books" / "audit")) >= 400


def test_a_copy_that_was_overtaken_goes_on_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files are not kept for a reader of standard output who takes nothing; who comes back gets what is kept."""
    audit = opened(tmp_path, file_bytes=1 << 13, keep_files=2)
    out, into = os.pipe()
    os.set_blocking(out, False)
    echo = Echo(tmp_path, audit.journal, audit.position, into)
    append(audit, 1000)
    copied = b""

    def read() -> bytes:
        nonlocal copied
        with contextlib.suppress(BlockingIOError):
            copied += os.read(out, 1 << 16)
        return copied

    until(lambda: b'"sequence":1,' in read(), "the copy begins")
    audit.prune(1000)
    until(lambda: b'"sequence":1000,' in read(), "the copy goes on")
    sequences = [json.loads(line)["sequence"] for line in copied.splitlines()]
    (gap,) = [(a, b) for a, b in itertools.pairwise(sequences) if b != a + 1]
    assert f"lines {gap[0] + 1} to {gap[1] - 1} were not copied" in caplog.text
    assert gap[1] == journal.files(tmp_path)[0].first
    echo.close(10)
    audit.close()
    os.close(out)
    os.close(into)
