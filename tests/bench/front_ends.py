"""What several serving processes in front of one engine would be worth: `python -m tests.bench.front_ends`.

Each is a whole Jubako (keys, budgets in one shared file, its own queue, its own audit, metrics) on vLLM's front end,
all attached to one engine by vLLM's client addresses. With the cheap engine the front ends are the limit; with
`--engine real` it is vLLM's own engine core on a corner of the demo model, for what each front end costs the engine.
Says tokens a second, and the processor time of every process per token: with those, other machines can be computed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tests.bench import cheap_core, machine
from tests.bench.command import say, start
from tests.bench.scale import crowd
from tests.bench.scale.run import STREAM, Load, Side, cheap_engine, idle_cores, sending
from tests.bench.serving import Child, Place
from tests.bench.speed import kernel
from tests.project import REPOSITORY

FRONT_ENDS = (1, 2, 4)
STREAMS = 128
REQUESTS = 3
ROUNDS = 5
TENANTS = 100
STEP_SECONDS = 0.001
"""More than any number of front ends can take here, so that they are the limit."""
OUT = REPOSITORY / "build" / "front-ends"


@contextmanager
def real_engine(folder: Path, where: Sequence[Mapping[str, str]]) -> Iterator[subprocess.Popen[bytes]]:
    """vLLM's own engine core, in a process of its own below this one."""
    command = [sys.executable, "-m", "tests.bench.front_ends", "engine"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"folder": str(folder), "addresses": list(where)}).encode() + b"\n")
        process.stdin.flush()
        yield process
    finally:
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for one in below:
            one.kill()
        process.wait()


def hold_engine() -> None:
    """The engine's launcher: stays until it is killed."""
    plan = json.loads(sys.stdin.readline())
    from jubako import settings
    from jubako.engine import options as engine_options
    from jubako.release import bundle, catalogue
    from tests.bench.projects import demo_model
    from tests.bench.speed.narrow import write_narrow

    loaded = settings.load(REPOSITORY)
    variables = {name: engine_options.environment_text(one) for name, one in loaded.profile.environment.items()}
    os.environ.update(variables | engine_options.FIXED_ENVIRONMENT)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.utils import EngineZmqAddresses, launch_core_engines
    from vllm.v1.executor import Executor

    from jubako.engine.vllm.launch import parse

    release = loaded.server.release
    served = bundle.served(catalogue.load(loaded.configuration, f"{release.name}/{release.version}"))
    model = write_narrow(demo_model()[0], Path(plan["folder"]))
    options = loaded.engine_options | {"max_num_seqs": STREAMS}
    arguments = parse(replace(served, model_folder=str(model)), options, 5)
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    addresses = EngineZmqAddresses(
        inputs=[one["input_address"] for one in plan["addresses"]],
        outputs=[one["output_address"] for one in plan["addresses"]],
    )
    with launch_core_engines(config, Executor.get_class(config), log_stats=True, addresses=addresses) as launched:
        pass
    # Held until the end: what is let go of is ended.
    launched.engine_manager.monitor_engine_liveness()


def engine_cpu_seconds(engine: int) -> float:
    """Of the engine and what is below it."""
    below = psutil.Process(engine).children(recursive=True)
    return kernel.cpu_seconds(engine) + sum(kernel.cpu_seconds(one.pid) for one in below)


def measure(sides: Sequence[Side], engine: int) -> dict[str, float]:
    """One window over so many front ends: connections are dealt to them in turn."""
    before, engine_before = [one.level() for one in sides], engine_cpu_seconds(engine)
    plan = Load(STREAM, STREAMS // len(sides), REQUESTS).to("whole", *sides)
    target = replace(plan.targets[0], ports=[one.ports[0] for one in plan.targets])
    plan = replace(plan, targets=[target], connections=STREAMS)
    with sending(plan) as callers:
        (found,) = callers.finish()
    engine_spent = engine_cpu_seconds(engine) - engine_before
    spent = sum(one.level() - was for one, was in zip(sides, before, strict=True))
    tokens = found["tokens"]
    return {
        "tokens_per_second": tokens / found["seconds"],
        "front_end_us": spent / tokens * 1e6,
        "engine_us": engine_spent / tokens * 1e6,
        "callers_us": callers.cpu_seconds / tokens * 1e6,
        "total_p50_ms": found["total_p50_ms"],
    }


def run(folder: Path, *, real: bool) -> dict[str, Any]:
    """All numbers of front ends in turn, round after round."""
    project = crowd.write(folder / "project", TENANTS)
    where = cheap_core.addresses(folder, FRONT_ENDS[-1])
    rounds: dict[int, list[dict[str, float]]] = {number: [] for number in FRONT_ENDS}
    with ExitStack() as stack:
        engine = stack.enter_context(real_engine(folder, where) if real else cheap_engine(where, STEP_SECONDS))
        sides = []
        children = []
        for number, addresses in enumerate(where):
            place = Place(str(project.folder), addresses, len(where), number)
            # Budgets and ledger are shared; an audit has one writer.
            own = {"JUBAKO__BOOKS__AUDIT_FOLDER": f".jubako/books/audit-{number}"}
            child = Child(place, folder / f"serving-{number}.log", own)
            stack.callback(child.end)
            children.append(child)
        sides = [Side(f"front end {number}", project, child) for number, child in enumerate(children)]
        for turn in range(ROUNDS + 1):
            for number in FRONT_ENDS[:: 1 if turn % 2 else -1]:
                found = measure(sides[:number], engine.pid)
                if turn:  # the first warms up
                    rounds[number].append(found)
            say(f"round {turn} of {ROUNDS}" if turn else "warm")
        idle = idle_cores(sides[0])
    medians = {
        number: {figure: statistics.median(one[figure] for one in many) for figure in many[0]}
        for number, many in rounds.items()
    }
    engine_name = "vLLM's own on a corner of the demo model" if real else "cheap"
    return {"engine": engine_name, "machine": machine.machine(), "idle": idle, "medians": medians, "rounds": rounds}


def table(report: dict[str, Any]) -> str:
    """The medians, as the decision record has them."""
    lines = [
        f"engine: {report['engine']}; {STREAMS} streams of {STREAM['max_tokens']} tokens, {ROUNDS} rounds",
        "| front ends | tokens/s | front ends, µs CPU a token | engine | callers | all | one alone ends at, tokens/s |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for number, one in report["medians"].items():
        parts = [one["front_end_us"], one["engine_us"], one["callers_us"]]
        cells = [f"{one['tokens_per_second']:,.0f}", *(f"{part:.1f}" for part in (*parts, sum(parts)))]
        lines.append(f"| {number} | {' | '.join(cells)} | {1e6 / one['front_end_us']:,.0f} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run, or be the engine's launcher."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["run", "engine"], nargs="?", default="run")
    parser.add_argument("--engine", choices=["cheap", "real"], default="cheap")
    options = parser.parse_args(arguments)
    if options.role == "engine":
        hold_engine()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), real=options.engine == "real")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{options.engine}.json").write_text(json.dumps(report, indent=1) + "\n")
    say(table(report))
    return 0


if __name__ == "__main__":
    start(main)
