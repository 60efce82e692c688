"""Where the time of a start goes: its phases in order, each as long as the way to it took from the one before.

Owns the names of the phases and the passing on of what is known from the arbiter to the worker. A start runs through
several processes, so instants are readings of the kernel's clock since boot, which all of them share. Knows nothing
of what the phases do.
"""

from __future__ import annotations

import enum
import json
import os
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

VARIABLE = "JUBAKO_START_TIMES"
"""What the arbiter knows, for the worker."""


class StartPhase(enum.StrEnum):
    """What had to be done before the next thing could be; in order. The value is the metric's label."""

    COMMAND = "command"
    """From the first process to the service's module: interpreter, the command's own checks, imports of BentoML."""
    SETTINGS = "settings"
    VERIFICATION = "verification"
    """What else is refused before the socket opens, the release's files above all."""
    WORKER = "worker"
    """The socket, the worker's process, its imports of BentoML, its settings."""
    ENGINE_IMPORTS = "engine_imports"
    """Gate and books opened and vLLM imported, at once."""
    ENGINE_CONFIGURATION = "engine_configuration"
    ENGINE_PROCESS = "engine_process"
    """vLLM's engine process with its imports, up to the process that computes, if that is another one."""
    ENGINE_LOADING = "engine_loading"
    """The rest of the engine's start: the computing process with its imports, weights, cache, profile."""
    SERVING = "serving"
    """vLLM's serving objects: tokenizer, template, parsers."""
    SMOKE = "smoke"
    """The release's prompts answered, and the way to ready."""


def now() -> float:
    """Seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def begun(pid: int) -> float:
    """When the process began, on the same clock. Raises `OSError` if it is gone."""
    # After the name in parentheses, which may hold anything; the file counts from 1, and the state is its third field.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")


class StartTimes:
    """The phases of one start that are over, and when each was."""

    def __init__(self, begun_at: float, ends: Mapping[StartPhase, float] | None = None) -> None:
        self._begun_at = begun_at
        self._ends = dict(ends or {})

    @classmethod
    def of_process(cls, pid: int, environment: Mapping[str, str]) -> StartTimes:
        """What the process before this one passed on, or a start that begins with this one; it raises nothing."""
        with suppress(KeyError, ValueError, TypeError, AttributeError):
            begun_at, ends = json.loads(environment[VARIABLE])
            return cls(float(begun_at), {StartPhase(name): float(at) for name, at in ends.items()})
        with suppress(OSError):
            return cls(min(begun(pid), now()))
        return cls(now())

    def pass_on(self, environment: MutableMapping[str, str]) -> None:
        """Tell the processes that get `environment`."""
        environment[VARIABLE] = json.dumps([self._begun_at, self._ends])

    def end(self, phase: StartPhase, at: float | None = None) -> None:
        """The phase is over now, or was at `at`; the first time stands."""
        self._ends.setdefault(phase, now() if at is None else at)

    @property
    def seconds(self) -> Mapping[StartPhase, float]:
        """How long each phase took that is over; together, the time from the first process to the last end."""
        found, last = {}, self._begun_at
        for phase in StartPhase:
            if phase in self._ends:
                found[phase] = max(self._ends[phase] - last, 0.0)
                last = max(self._ends[phase], last)
        return found

    def __str__(self) -> str:
        seconds = self.seconds
        parts = ", ".join(f"{phase} {seconds[phase]:.1f}" for phase in seconds)
        return f"{sum(seconds.values()):.1f} s ({parts})"
