"""A process started ahead of what it is to do is one that `spawn` would have made."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from jubako.engine.vllm import ahead
from tests.project import until

MARK = "JUBAKO_TEST_AHEAD"


@pytest.fixture(autouse=True)
def _quick_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported makes no difference here; the real modules take seconds."""
    monkeypatch.setattr(ahead, "_IMPORTS", ("json.tool",))


def tell(path: str) -> None:
    """In the child: who and where it is."""
    parent = multiprocessing.parent_process()
    told = [
        *(str(os.getpid()), str(os.getppid()), os.environ.get(MARK, ""), multiprocessing.current_process().name),
        *(str(parent is not None and parent.is_alive()), str("json.tool" in sys.modules)),
    ]
    Path(path).write_text("\n".join(told))
    sys.exit(3)


def entitle(path: str) -> None:
    """In the child: give itself a title, as vLLM does."""
    from setproctitle import setproctitle

    setproctitle("VLLM::EngineCore")
    Path(path).write_bytes(Path("/proc/self/cmdline").read_bytes() + Path("/proc/self/comm").read_bytes())


def send(connection: Connection) -> None:
    """In the child: a word through a descriptor of the parent's."""
    connection.send("here")


def test_it_becomes_the_first_process_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the environment of the moment when it is told, its parent, its name and its exit status."""
    interpreter = ahead.Interpreter()
    context = ahead.Context(interpreter)
    monkeypatch.setenv(MARK, "later")
    pids = []
    for number, imported in ((1, "True"), (2, "False")):
        told = tmp_path / str(number)
        process = context.Process(target=tell, args=(str(told),), name=f"Engine{number}")
        process.start()
        process.join()
        assert process.exitcode == 3
        pids.append(process.pid)
        assert told.read_text().split("\n") == [
            *(str(process.pid), str(os.getpid()), "later", f"Engine{number}", "True", imported)
        ]
    assert pids[0] == interpreter.pid
    assert pids[1] != interpreter.pid


def test_it_can_be_given_a_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which an operator, and our tests, tell the engine's process from others."""
    monkeypatch.setenv("JUBAKO_TEST_GONE", "1")
    context = ahead.Context(ahead.Interpreter())
    monkeypatch.delenv("JUBAKO_TEST_GONE")
    monkeypatch.setenv(MARK, "1")
    process = context.Process(target=entitle, args=(str(tmp_path / "title"),))
    process.start()
    process.join()
    assert (tmp_path / "title").read_bytes().count(b"VLLM::EngineCor") == 2


def test_a_process_that_needs_descriptors_is_started_anew() -> None:
    """One that runs already cannot inherit them; the one that was ahead ends by itself, without a word."""
    interpreter = ahead.Interpreter()
    ours, theirs = multiprocessing.Pipe()
    process = ahead.Context(interpreter).Process(target=send, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == "here"
    process.join()
    assert process.exitcode == 0
    assert process.pid != interpreter.pid
    assert os.waitstatus_to_exitcode(os.waitpid(interpreter.pid, 0)[1]) == 0


def test_one_that_died_is_replaced(tmp_path: Path) -> None:
    """Being early is all it is for."""
    interpreter = ahead.Interpreter()
    os.kill(interpreter.pid, signal.SIGKILL)
    until(lambda: psutil.Process(interpreter.pid).status() == psutil.STATUS_ZOMBIE, "it is dead")
    process = ahead.Context(interpreter).Process(target=tell, args=(str(tmp_path / "told"),))
    process.start()
    process.join()
    assert process.exitcode == 3
    assert process.pid != interpreter.pid


def test_it_ends_without_a_word_when_nobody_tells_it_anything(capfd: pytest.CaptureFixture[str]) -> None:
    """Its parent may end before the engine is described."""
    interpreter = ahead.Interpreter()
    interpreter.discard()
    assert os.waitstatus_to_exitcode(os.waitpid(interpreter.pid, 0)[1]) == 0
    assert capfd.readouterr().err == ""


def test_a_module_that_cannot_be_imported_is_left_to_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own import tells what is wrong."""
    monkeypatch.setattr(ahead, "_IMPORTS", ("no_such_module_anywhere",))
    process = ahead.Context(ahead.Interpreter()).Process(target=tell, args=(str(tmp_path / "told"),))
    process.start()
    process.join()
    assert process.exitcode == 3


def test_one_that_nothing_was_made_of_ends_with_the_context() -> None:
    """Else it would wait for as long as the server lives."""
    interpreter = ahead.Interpreter()
    ahead.Context(interpreter).discard()
    assert os.waitpid(interpreter.pid, 0)[0] == interpreter.pid
