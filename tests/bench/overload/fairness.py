"""Does a tenant that asks for little notice one that asks for ten times as much? It knows callers, not servers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tests.bench.overload import measures
from tests.bench.overload.bench import Bench
from tests.bench.overload.generator import Caller
from tests.bench.overload.plan import Plan
from tests.bench.overload.records import Record
from tests.bench.overload.sweep import line, stage


async def fairness(loud: Caller, quiet: Caller, rate: float, plan: Plan, bench: Bench) -> dict[str, Any]:
    """B alone and together with A in turns, so that a drift of the machine falls on both; then both backlogged.

    `rate` is saturation. B sends the same requests at the same times in both phases of a round.
    """
    slow = plan.quiet_share * rate
    alone: list[Record] = []
    together: list[Record] = []
    others: list[Record] = []
    until = plan.settle_seconds + plan.phase_seconds
    for number in range(plan.rounds):
        seed = f"{plan.seed}/fairness/{number}"
        for flows, kept in (
            ([(quiet, slow)], alone),
            ([(quiet, slow), (loud, plan.loud_factor * slow)], together),
        ):
            records, _ = await stage(flows, plan.settle_seconds, plan.phase_seconds, plan, seed)
            bench.keep(f"{seed}/{'alone' if len(flows) == 1 else 'together'}", records)
            window = measures.counted(records, plan.settle_seconds, until)
            mine = [record for record in window if record.tenant == quiet.tenant]
            kept.extend(mine)
            others += [record for record in window if record.tenant != quiet.tenant]
            summary = measures.summarize(mine, plan.phase_seconds, plan.slo)
            bench.say(f"  B {'alone' if len(flows) == 1 else 'with A'}: {line(summary)}")
            await bench.idle()
    seconds = plan.rounds * plan.phase_seconds
    return {
        "rate_per_second": slow,
        "loud_rate_per_second": plan.loud_factor * slow,
        "alone": asdict(measures.summarize(alone, seconds, plan.slo)),
        "together": asdict(measures.summarize(together, seconds, plan.slo)),
        "loud": asdict(measures.summarize(others, seconds, plan.slo)),
        "backlogged": await _backlogged(loud, quiet, rate, plan, bench),
    }


async def _backlogged(loud: Caller, quiet: Caller, rate: float, plan: Plan, bench: Bench) -> dict[str, Any]:
    """Both far above their share: what each receives in the same span."""
    each = plan.backlog_multiple * rate
    until = plan.settle_seconds + plan.backlog_seconds
    flows = [(loud, each), (quiet, each)]
    seed = f"{plan.seed}/backlogged"
    records, _ = await stage(flows, plan.settle_seconds, plan.backlog_seconds, plan, seed)
    bench.keep(seed, records)
    one, other = (
        measures.tokens_between(records, caller.tenant, plan.settle_seconds, until) for caller in (loud, quiet)
    )
    apart = measures.difference(one, other)
    bench.say(f"  both backlogged: {one} and {other} tokens{'' if apart is None else f', {apart:.1%} apart'}")
    await bench.idle()
    return {"rate_per_second": each, "seconds": plan.backlog_seconds, "tokens": [one, other], "difference": apart}
