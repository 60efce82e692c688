"""What every scenario is given beside its plan and its callers. Knows nothing of any of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.overload.records import Record


@dataclass(frozen=True)
class Bench:
    """How a scenario waits for rest, tells what it found, and keeps every request's record."""

    idle: Callable[[], Awaitable[None]]
    say: Callable[[str], None]
    keep: Callable[[str, Sequence[Record]], None]


def keeper(file: Path, server: str) -> Callable[[str, Sequence[Record]], None]:
    """Appends each record of a stage to `file` as a line of JSON, so that a surprising number can be looked into."""

    def keep(stage: str, records: Sequence[Record]) -> None:
        with gzip.open(file, "at", compresslevel=1) as output:
            for record in records:
                output.write(json.dumps({"server": server, "stage": stage, **asdict(record)}) + "\n")

    return keep
