"""From a GGUF file to safetensors, in a process of its own.

Owns the command that starts the conversion and its demands on the tool's version, which is part of the resulting
bytes. The conversion itself is in `gguf`; torch is never loaded here.
"""

from __future__ import annotations

import collections
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from jubako.errors import StartupFault
from jubako.release import staging
from jubako.release.manifest import Conversion

GROWTH = 5
"""Safetensors in bfloat16 are at most this many times the size of the usual 4-bit GGUF."""
OUTPUT_LINES = 8


def tool_version() -> str:
    """The version of transformers installed here. Raises `StartupFault` if there is none."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        raise StartupFault(
            "converting GGUF needs transformers, torch and gguf; install them in this environment"
        ) from None


def convert(conversion: Conversion, gguf: Path, into: Path) -> None:
    """Write `gguf` as safetensors, configuration and tokenizer into the new folder `into`.

    Raises `StartupFault` if the tool's version is not the pinned one, and with the tool's last words if it fails.
    """
    if (here := tool_version()) != conversion.tool_version:
        raise StartupFault(
            f"this release was converted with {conversion.tool} {conversion.tool_version}; here is {here}, which may "
            f"give other bytes. Install {conversion.tool}=={conversion.tool_version} and run the command again."
        )
    staging.require_space(gguf.parent, GROWTH * gguf.stat().st_size)
    command = [sys.executable, "-m", "jubako.release.gguf", str(gguf), str(into), conversion.dtype]
    # No network, and the processor only: both could change the bytes.
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    last = collections.deque[str](maxlen=OUTPUT_LINES)
    with (
        staging.progress("convert GGUF to safetensors", 4, unit="stage") as advance,
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace") as process,
    ):  # fmt: skip
        try:
            for line in process.stdout or ():
                if line.startswith("stage "):
                    advance(1)
                elif line.strip():
                    last.append(line.rstrip()[-300:])
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        words = "\n".join(f"  {line}" for line in last)
        raise StartupFault(f"converting {gguf.name} failed (exit status {process.returncode}):\n{words}")
