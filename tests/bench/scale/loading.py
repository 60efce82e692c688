"""What it takes to read a tenants file and a keys file, in a process that does nothing else. Prints JSON.

It knows the authenticator and the project's files; it knows no server.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from jubako import settings
from jubako.gate.authentication import Authenticator
from tests.bench.scale import crowd
from tests.project import Project

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def measure(folder: Path) -> dict[str, Any]:
    """Load once, then reload each file once after a change, as the watch does."""
    loaded = settings.load(folder)
    server = loaded.server
    project = Project(folder)
    tenants = loaded.tenants_file.stat().st_size
    gc.collect()
    before, begun, cpu = _resident_bytes(), time.perf_counter(), time.process_time()
    one = Authenticator.load(server.authentication, folder, server.limits.limits, server.deadline.seconds, None)
    found: dict[str, Any] = {
        "tenants": len(one._state.tenants),
        "load_seconds": time.perf_counter() - begun,
        "load_cpu_seconds": time.process_time() - cpu,
        "peak_more_bytes": _resident_bytes() - before,
        "tenants_file_bytes": tenants,
        "keys_file_bytes": loaded.keys_file.stat().st_size,
    }
    gc.collect()
    found["kept_bytes"] = _resident_bytes() - before
    crowd.another_key(project)()
    found["keys_reload_seconds"] = _look(one)
    crowd.write_tenants(project, found["tenants"] + 1)
    one._look()  # sees the change, and waits for it to stand still
    found["tenants_reload_seconds"] = _look(one)
    return found


def _look(one: Authenticator) -> float:
    begun, before = time.perf_counter(), one._state
    one._look()
    assert one._state is not before
    return time.perf_counter() - begun


if __name__ == "__main__":
    json.dump(measure(Path(sys.argv[1])), sys.stdout)
