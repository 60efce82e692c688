"""Callers as a process of their own, so that what they spend is not the server's. It knows nothing of what they send.

The process gets its plan as JSON on standard input and gives what it found as JSON on standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any


def call(module: str, plan: Any, seconds: float, what: str) -> Any:
    """Run the module of `tests.bench` with a plan, a dataclass, to its end; what it found."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{module}"],
        input=json.dumps(asdict(plan)).encode(),
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{what} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
    return json.loads(done.stdout)
