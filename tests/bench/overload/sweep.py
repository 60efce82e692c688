"""The sweep: saturation in closed loops, then open loops at multiples of it. It knows callers, not servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.bench.overload import measures
from tests.bench.overload.bench import Bench
from tests.bench.overload.generator import Arrival, Caller, closed_loop, lengths, open_loop, poisson, prompts
from tests.bench.overload.plan import Plan
from tests.bench.overload.records import Record


def arrivals(flows: Sequence[tuple[Caller, float]], seconds: float, plan: Plan, seed: str) -> list[Arrival]:
    """Every caller's own Poisson process at its rate, merged in time."""
    merged: list[Arrival] = []
    for caller, rate in flows:
        texts = prompts(f"{seed}/{caller.tenant}/prompts")
        sizes = lengths(plan.tokens, f"{seed}/{caller.tenant}/lengths")
        times = poisson(rate, seconds, f"{seed}/{caller.tenant}")
        merged += [Arrival(at, caller, next(texts), next(sizes)) for at in times]
    return sorted(merged, key=lambda arrival: arrival.seconds)


async def stage(
    flows: Sequence[tuple[Caller, float]], settle: float, window: float, plan: Plan, seed: str
) -> tuple[list[Record], dict[str, float]]:
    """One open loop: its records, and what the generator itself took of a core."""
    until = settle + window
    at_latest = plan.at_latest(until)
    schedule = arrivals(flows, at_latest, plan, seed)
    wall, cpu = time.perf_counter(), time.process_time()
    records = await open_loop(schedule, until, at_latest)
    elapsed, used = time.perf_counter() - wall, time.process_time() - cpu
    return records, {"generator_cores": used / elapsed, "seconds": elapsed, "sent_per_second": len(records) / elapsed}


async def saturation(caller: Caller, plan: Plan, bench: Bench) -> dict[str, Any]:
    """The greatest goodput of closed loops: what the server can do in time when callers wait for each other."""
    levels = [await level(caller, workers, plan, bench) for workers in plan.levels]
    best = max(levels, key=lambda one: float(one["goodput_per_second"]))
    if best["goodput_per_second"] <= 0:
        raise RuntimeError("no closed loop had a reply in time: there is no saturation to multiply")
    return {
        "requests_per_second": best["goodput_per_second"],
        "requests_at_a_time": best["requests_at_a_time"],
        "levels": levels,
    }


async def level(caller: Caller, workers: int, plan: Plan, bench: Bench) -> dict[str, Any]:
    """One closed loop, from idle to idle."""
    start = plan.settle_seconds
    end = start + plan.level_seconds
    seed = f"{plan.seed}/level/{workers}"
    records = await closed_loop(caller, workers, seconds=end, spread_seconds=start / 2, tokens=plan.tokens, seed=seed)
    bench.keep(seed, records)
    ended = [record for record in records if record.outcome == "complete" and record.end >= start]
    goodput = measures.completed_in_time(records, start, end, plan.slo) / plan.level_seconds
    bench.say(f"  closed loop of {workers}: {goodput:.2f} requests/s in time")
    await bench.idle()
    return {
        "requests_at_a_time": workers,
        "goodput_per_second": goodput,
        "time_to_first_token": asdict(measures.Spread.of(r.time_to_first_token for r in ended)),
        "time_per_output_token": asdict(measures.Spread.of(r.time_per_output_token for r in ended)),
    }


async def sweep(caller: Caller, rate: float, plan: Plan, bench: Bench) -> list[dict[str, Any]]:
    """One stage at each multiple of `rate`, from low to high, the server idle before each."""
    stages = []
    for multiple in plan.multiples:
        seed = f"{plan.seed}/stage/{multiple:g}"
        flows = [(caller, multiple * rate)]
        records, cost = await stage(flows, plan.settle_seconds, plan.window_seconds, plan, seed)
        bench.keep(seed, records)
        until = plan.settle_seconds + plan.window_seconds
        window = measures.counted(records, plan.settle_seconds, until)
        summary = measures.summarize(window, plan.window_seconds, plan.slo)
        stages.append(
            {"multiple": multiple, "rate_per_second": multiple * rate, "summary": asdict(summary), "cost": cost}
        )
        bench.say(f"  {multiple:>5g} x: {line(summary)}, generator {cost['generator_cores']:.0%} of a core")
        await bench.idle()
    return stages


def line(summary: measures.Summary) -> str:
    """A stage in a line of the terminal."""
    first, refusals = summary.time_to_first_token.p95, summary.refusal_latency.p95
    return (
        f"{summary.offered_per_second:.2f}/s due, {summary.goodput_per_second:.2f}/s in time, late {summary.late},"
        f" refused {summary.refused}, failed {summary.failed}, cut {summary.cut},"
        f" TTFT p95 {'-' if first is None else f'{first:.2f} s'},"
        f" refusals p95 {'-' if refusals is None else f'{refusals * 1000:.0f} ms'}"
        f"{', LAGGED' if summary.lagged else ''}{f' {summary.codes}' if summary.codes else ''}"
    )
