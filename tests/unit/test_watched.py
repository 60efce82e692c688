"""A file that is read again while streams are written: no collection of garbage comes in between."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from jubako.errors import StartupFault
from jubako.gate.watched import WatchedFile


def watched(path: Path, collects: list[bool]) -> WatchedFile[bytes]:
    """Of a file whose content is good unless it says otherwise; notes whether garbage is collected while it is read."""

    def parse(content: bytes, path: Path) -> bytes:
        collects.append(gc.isenabled())
        if content == b"bad":
            raise StartupFault(f"{path}: bad")
        return content

    return WatchedFile(path, "things", Path.read_bytes, parse, settle=False)


@pytest.mark.parametrize("content", ["good", "bad"])
def test_no_garbage_is_collected_while_a_change_is_read_and_it_is_afterwards(tmp_path: Path, content: str) -> None:
    """Whether the change is good or not."""
    path = tmp_path / "file"
    path.write_text("first")
    collects: list[bool] = []
    one = watched(path, collects)
    one.load()
    collects.clear()
    path.write_text(content)
    one.changed()
    assert collects == [False]
    assert gc.isenabled()


def test_a_process_that_collects_none_is_left_so(tmp_path: Path) -> None:
    """Somebody turned it off."""
    path = tmp_path / "file"
    path.write_text("first")
    one = watched(path, [])
    one.load()
    path.write_text("second")
    gc.disable()
    try:
        assert one.changed() == b"second"
        assert not gc.isenabled()
    finally:
        gc.enable()
