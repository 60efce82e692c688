"""Inside the serving process: what only it can count, written to a file when a signal asks for it.

Tasks by what they run, Python's threads by name, and the objects that came after the start by type. It changes nothing
until it is asked, but garbage is collected then, so that what is counted is what is held.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

SIGNAL = signal.SIGUSR2
MOST_COMMON = 60
_UNNAMED = re.compile(r"Task-\d+")


def install(file: Path) -> None:
    """Answer the signal from now on; to be called in the main thread, where the event loop will run."""

    def answer(_: int, __: FrameType | None) -> None:
        made = file.with_suffix(".new")
        made.write_text(json.dumps(_counts()))
        made.replace(file)

    signal.signal(SIGNAL, answer)


def ask(pid: int, file: Path) -> None:
    """From outside: let the process write its counts to `file`, which is gone until they are there."""
    file.unlink(missing_ok=True)
    os.kill(pid, SIGNAL)


def _counts() -> dict[str, object]:
    gc.collect()
    objects = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    return {
        "tasks": dict(Counter(map(_name, asyncio.all_tasks()))),
        "threads": dict(Counter(re.sub(r"[-_ ]?\d+( \(.*\))?$", "", one.name) for one in threading.enumerate())),
        "objects": objects.total(),
        "types": dict(objects.most_common(MOST_COMMON)),
    }


def _name(task: asyncio.Task[object]) -> str:
    """Its name, if it has one of its own; else the name of what it runs."""
    if not _UNNAMED.fullmatch(task.get_name()):
        return task.get_name()
    return str(getattr(task.get_coro(), "__qualname__", "unknown"))
