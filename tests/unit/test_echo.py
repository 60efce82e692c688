"""The audit's copy on standard output, where the output is not as patient as a file."""

from __future__ import annotations

import json
import logging
import os
import select
from pathlib import Path

import pytest

from jubako.books.echo import Echo
from tests.accounts import account, opened

LINES = 500
"""Several times what a pipe holds."""


def test_an_output_that_does_not_block_gets_every_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also after it was full: whoever shares the pipe decides whether it blocks, and the copy does not end for that."""
    audit = opened(tmp_path)
    out, into = os.pipe()
    os.set_blocking(into, False)
    before = audit.position
    for number in range(LINES):
        audit.append(account(number))
    echo = Echo(tmp_path, audit.journal, before, into)
    full = select.poll()
    full.register(into, select.POLLOUT)
    with caplog.at_level(logging.ERROR, "jubako"):
        while full.poll(0):
            pass
        copied = b""
        while copied.count(b"\n") < LINES:
            assert select.select([out], [], [], 30)[0], caplog.text
            copied += os.read(out, 1 << 16)
    assert [json.loads(line)["sequence"] for line in copied.splitlines()] == list(range(1, LINES + 1))
    assert caplog.text == ""
    echo.close(30)
    audit.close()
    os.close(out)
    os.close(into)


def test_a_reader_who_left_ends_the_copy_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and requests are put on record as before."""
    audit = opened(tmp_path)
    out, into = os.pipe()
    os.set_blocking(into, False)
    echo = Echo(tmp_path, audit.journal, audit.position, into)
    os.close(out)
    audit.append(account(1))
    echo.close(30)
    assert "no longer copied to standard output" in caplog.text
    audit.append(account(2))
    audit.close()
    os.close(into)
