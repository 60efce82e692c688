"""What a benchmark ran on: the machine and the versions of what counts. It knows no server and no load."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil


def head(command: str, distributions: Iterable[str], **more: str) -> dict[str, Any]:
    """What every report begins with; `more` are versions of what is no distribution here."""
    return {
        "command": command,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "versions": versions(distributions) | more,
    }


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory, and the interpreter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """The version of each distribution that is installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
