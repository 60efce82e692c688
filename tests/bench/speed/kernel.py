"""What the kernel has on record about a process: processor time and memory. Knows nothing of servers."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Places in /proc/PID/stat after the name in parentheses: utime and stime of all threads, ended ones included."""


def cpu_seconds(pid: int) -> float:
    """Processor time that the process has used, all threads; its children are not in it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_SYSTEM])) * _TICK_SECONDS


def peak_bytes(pid: int) -> int:
    """The most resident memory that the process ever had."""
    return _status_bytes(pid, "VmHWM")


def resident_bytes(pid: int) -> int:
    """Resident memory now, files that others map too included."""
    return _status_bytes(pid, "VmRSS")


def own_bytes(pid: int) -> int:
    """Resident memory that no file backs, heap and shared memory: what the page cache drops does not change it."""
    return _status_bytes(pid, "RssAnon") + _status_bytes(pid, "RssShmem")


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel names no {name} for process {pid}")
