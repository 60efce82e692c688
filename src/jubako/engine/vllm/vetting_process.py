"""The process that checks grammars, as the serving process sees it: started when needed, replaced when it ends.

It owns that process and nothing else; what is asked of it, and when, is `vetting`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jubako.engine.vllm import vetting_child
from jubako.engine.vllm.vetting_child import HEADER, Setting
from jubako.errors import Unavailable

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
START_SECONDS = 300.0
RETRY_START_SECONDS = 5.0
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Ours are the limits; vLLM's would leave a thread behind.
    "VLLM_REGEX_COMPILATION_TIMEOUT_S": "0",
}


class _Ended(Exception):
    """The process went away, or did not answer."""


class CheckingProcess:
    """One process at a time, for one check at a time."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._child: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._start_failed_at: float | None = None
        self._closed = False

    @property
    def process_id(self) -> int | None:
        """Its number, if it runs."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    async def check(self, message: bytes) -> dict[str, Any]:
        """Its answer to one message; raises `Unavailable`. One that ended meanwhile is replaced once."""
        for _ in range(2):
            child = await self._running()
            try:
                return await asyncio.wait_for(_exchange(child, message), self.setting.wall_seconds + GRACE_SECONDS)
            except (TimeoutError, _Ended):
                await self._end()
            except BaseException:
                # Its answer is still to come, and would be taken for the next one's.
                await self._end()
                raise
        raise _unavailable()

    async def start(self) -> None:
        """Have it ready; raises `Unavailable`."""
        await self._running()

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._child is not None and self._child.returncode is None:
                return self._child
            if self._closed:
                raise closing()
            if self._start_failed_at is not None and time.monotonic() - self._start_failed_at < RETRY_START_SECONDS:
                raise _unavailable()
            return await self._start()

    async def _start(self) -> asyncio.subprocess.Process:
        started = time.monotonic()
        self._child = child = await asyncio.create_subprocess_exec(
            # -P: the folder of the script is not a place to import from.
            *(sys.executable, "-P", str(Path(vetting_child.__file__)), str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | _ENVIRONMENT,
        )
        try:
            answer = await asyncio.wait_for(_exchange(child, json.dumps(asdict(self.setting)).encode()), START_SECONDS)
        except (TimeoutError, _Ended):
            answer = {"ready": False, "reason": "it ended or did not answer"}
        except BaseException:
            await self._end()
            raise
        if not answer["ready"]:
            await self._end()
            self._start_failed_at = time.monotonic()
            # BentoML's arbiter passes SIGTERM on to every process of ours: then the server ends, and that is no fault.
            level = logging.INFO if child.returncode == -signal.SIGTERM else logging.ERROR
            logger.log(level, "the process that checks grammars did not start: %s", answer["reason"])
            raise _unavailable()
        self._start_failed_at = None
        logger.info("grammars are checked by process %d, ready after %.1f s", child.pid, time.monotonic() - started)
        return child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def close(self) -> None:
        """End it, for good."""
        self._closed = True
        await self._end()


async def _exchange(child: asyncio.subprocess.Process, message: bytes) -> dict[str, Any]:
    if child.stdin is None or child.stdout is None:
        raise _Ended
    try:
        child.stdin.write(HEADER.pack(len(message)) + message)
        await child.stdin.drain()
        (length,) = HEADER.unpack(await child.stdout.readexactly(HEADER.size))
        answer: dict[str, Any] = json.loads(await child.stdout.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        raise _Ended from None
    return answer


def closing() -> Unavailable:
    """What a caller is told whose grammar is not checked any more."""
    return Unavailable("The server is shutting down.", code="draining")


def _unavailable() -> Unavailable:
    return Unavailable("Schemas and grammars cannot be checked now.", code="engine_unavailable")
