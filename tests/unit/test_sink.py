"""A log that nobody reads: no call waits, what can be kept is kept in order, and what is lost is counted and told."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from jubako.telemetry.sink import Sink
from tests.project import REPOSITORY, until
from tests.unread_pipe import Reader, fill

LINES = 10_000
KEPT = 1_000
"""What the queue of these tests has room for, at least; a pipe holds less than that again."""
LINE_BYTES = 100


def line(number: int) -> str:
    """One of a known length, so that what the queue takes can be reckoned."""
    return f"line {number} ".ljust(LINE_BYTES - 1, ".") + "\n"


def loss(count: int) -> str:
    """The line that tells how many were dropped."""
    return f"lost {count}\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The end to read and the end to write."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        yield reading, stream
    os.close(reading)


def _numbers(lines: list[str]) -> list[int]:
    return [int(one.split()[1]) for one in lines if one.startswith("line ")]


def test_nobody_who_logs_waits_for_a_reader(pipe: tuple[int, TextIO]) -> None:
    """Ten thousand lines return; those that were kept come in order once somebody reads, then how many were not."""
    reading, stream = pipe
    sink = Sink(stream, loss, queue_bytes=KEPT * LINE_BYTES)
    for number in range(LINES):
        sink.write(line(number))
    dropped = sink.dropped
    assert LINES / 2 < dropped < LINES - KEPT
    reader = Reader(reading)
    reader.start()
    until(lambda: loss(dropped) in reader.lines, "the loss was told", 30)
    assert [one for one in reader.lines if one != loss(dropped)] == [line(n) for n in range(LINES - dropped)]
    sink.write(line(LINES))
    until(lambda: reader.lines[-1] == line(LINES), "the next line came", 30)
    assert sink.dropped == dropped


def test_nothing_is_lost_on_a_reader_who_is_away_for_a_while(pipe: tuple[int, TextIO]) -> None:
    """What the queue holds comes in order, and what is logged meanwhile comes after it, from whichever thread."""
    reading, stream = pipe
    sink = Sink(stream, loss)
    for number in range(LINES // 2):
        sink.write(line(number))
    reader = Reader(reading)
    reader.start()
    for number in range(LINES // 2, LINES):
        sink.write(line(number))
    until(lambda: len(reader.lines) == LINES, "all came", 30)
    assert _numbers(reader.lines) == list(range(LINES))
    assert sink.dropped == 0


def test_a_line_is_written_at_once_while_it_is_read(pipe: tuple[int, TextIO]) -> None:
    """No other thread has to be waited for; there is none."""
    reading, stream = pipe
    threads = threading.active_count()
    sink = Sink(stream, loss)
    for number in range(10):
        sink.write(line(number))
        assert os.read(reading, 65_536).decode() == line(number)
    assert threading.active_count() == threads


def test_a_pipe_that_others_filled_stops_nobody(pipe: tuple[int, TextIO]) -> None:
    """The engine's process and the arbiter write to the same one."""
    reading, stream = pipe
    fill(stream.fileno())
    sink = Sink(stream, loss)
    sink.write(line(1))
    reader = Reader(reading)
    reader.start()
    until(lambda: reader.lines[-1:] == [line(1)], "the line came", 30)


def test_a_line_longer_than_the_pipe_comes_whole(pipe: tuple[int, TextIO]) -> None:
    """What was taken of it is not written again."""
    reading, stream = pipe
    sink = Sink(stream, loss)
    long = "".join(f"{number};" for number in range(100_000)) + "\n"
    sink.write(long)
    sink.write(line(1))
    reader = Reader(reading)
    reader.start()
    until(lambda: reader.lines[-1:] == [line(1)], "both came", 30)
    assert reader.lines == [long, line(1)]


def test_a_socket_that_nobody_reads_stops_nobody() -> None:
    """As a service manager hands one over for standard error."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("w") as stream:
        sink = Sink(stream, loss)
        for number in range(LINES):
            sink.write(line(number))
        reader = Reader(theirs.fileno())
        reader.start()
        until(lambda: len(reader.lines) == LINES, "all came", 30)
        assert _numbers(reader.lines) == list(range(LINES))


def test_a_terminal_that_was_stopped_stops_nobody() -> None:
    """Ctrl-S at the terminal; the lines come after Ctrl-Q."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        # As the key does, but at once: the key is dealt with when the system comes to it.
        termios.tcflow(theirs, termios.TCOOFF)
        sink = Sink(stream, loss)
        for number in range(100):
            sink.write(line(number))
        assert not select.select([ours], [], [], 0)[0]
        reader = Reader(ours)
        reader.start()
        termios.tcflow(theirs, termios.TCOON)
        until(lambda: _numbers(reader.lines) == list(range(100)), "all came", 30)
        assert sink.dropped == 0
    os.close(ours)


def test_a_file_has_every_line_where_it_belongs(tmp_path: Path) -> None:
    """After what others wrote through the same description, and before what they write next."""
    path = tmp_path / "log"
    with path.open("w") as stream:
        os.write(stream.fileno(), b"before\n")
        sink = Sink(stream, loss)
        sink.write(line(1))
        os.write(stream.fileno(), b"after\n")
    assert path.read_text() == "before\n" + line(1) + "after\n"


def test_a_reader_who_has_gone_is_no_error(pipe: tuple[int, TextIO]) -> None:
    """Nobody is told, as there is nobody; the lines are counted."""
    reading, stream = pipe
    sink = Sink(stream, loss)
    os.dup2(os.open(os.devnull, os.O_RDONLY), reading)
    for number in range(10):
        sink.write(line(number))
    assert sink.dropped == 10


def test_a_stream_that_may_not_be_opened_again_is_written_by_the_thread(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of another user's: slower, and as safe."""
    reading, stream = pipe

    def refuse(*_: object) -> int:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        sink = Sink(stream, loss)
    for number in range(LINES):
        sink.write(line(number))
    reader = Reader(reading)
    reader.start()
    until(lambda: len(reader.lines) == LINES, "all came", 30)
    assert _numbers(reader.lines) == list(range(LINES))


SCRIPT = """
import logging, multiprocessing, os, sys
from jubako.sections import LogSettings
from jubako.telemetry import logs
from jubako.telemetry.sink import dropped_lines

def child():
    logging.getLogger("jubako.child").error("from the child")

if __name__ == "__main__":
    logs.configure(LogSettings(format="json", level="debug"))
    for number in range(int(sys.argv[1])):
        logging.getLogger("jubako.any").error("line %d", number)
    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    print("forked", flush=True)
    forked.join()
    logging.getLogger("jubako.any").error("%s is wrong", *range(2))
    print("done", dropped_lines(), flush=True)
    sys.stdin.read()
"""


def _process(tmp_path: Path, lines: int) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    source = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    return subprocess.Popen(
        [sys.executable, str(script), str(lines)],
        env=source,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_waits_is_written_at_the_process_end_and_by_its_own_process_alone(tmp_path: Path) -> None:
    """A forked process has its own lines and none of its parent's; a line that cannot be made is named."""
    count = 2_000
    with _process(tmp_path, count) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "forked\n"
        # The child has a copy of what waits, and leaves it to its parent.
        assert process.stdout.readline() == "done 0\n"
        _, said = process.communicate("", timeout=60)
    assert process.returncode == 0
    numbers = [int(found) for found in re.findall(r'"line (\d+)"', said)]
    assert numbers == list(range(count))
    assert re.search(r"a line of jubako\.any could not be made: TypeError at", said.splitlines()[-1])


def test_a_reader_who_is_away_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Python ends although nobody reads what waits."""
    with _process(tmp_path, 2_000) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
