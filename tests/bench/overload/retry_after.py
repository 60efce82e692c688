"""Is Retry-After true? Fill the server until it refuses, then ask again and again until it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.overload import measures
from tests.bench.overload.bench import Bench
from tests.bench.overload.generator import Arrival, Caller, Exchange, Load, prompts
from tests.bench.overload.plan import Plan, Trial

MOST_FILLERS = 1000
ANSWER_SECONDS = 0.2
"""A batch is given this long to show a refusal; one that is slower is still seen, a batch later."""
NEXT_SECONDS = 0.02
"""From one request to the next, to meet a refusal again: places come free in the meantime, several while a batch is."""


@dataclass(frozen=True)
class Probed:
    """One refusal and its truth, in seconds after it."""

    told_seconds: float
    refused_until: float
    """When the last probe that was refused was sent."""
    accepted_at: float
    """When the first probe that was accepted was sent."""
    code: str | None
    fillers: int


async def retry_after(caller: Caller, plan: Plan, bench: Bench) -> list[dict[str, Any]]:
    """Every trial of the plan, the server idle before each."""
    found = []
    for number, trial in enumerate(plan.trials):
        probed = await _try(caller, trial, plan, f"{plan.seed}/retry/{number}")
        ratio = measures.retry_ratio(probed.told_seconds, probed.refused_until, probed.accepted_at)
        found.append({"trial": asdict(trial), **asdict(probed), "ratio": ratio})
        bench.say(
            f"  {trial.tokens} tokens, batches of {trial.batch}: told {probed.told_seconds:.2f} s, accepted between"
            f" {probed.refused_until:.2f} and {probed.accepted_at:.2f} s, ratio {ratio:.2f} ({probed.code})"
        )
        await bench.idle()
    return found


async def _try(caller: Caller, trial: Trial, plan: Plan, seed: str) -> Probed:
    texts = prompts(seed)
    async with Load() as load:
        fillers = await _fill(load, caller, trial, texts)
        reference = await _refused(load, caller, trial, texts)
        told = reference.record().retry_after_seconds
        if told is None:
            raise RuntimeError("a refusal came without retry-after")
        start = reference.record().end
        last = 0.0
        while load.clock() - start < plan.trial_seconds:
            await asyncio.sleep(plan.probe_seconds)
            sent = load.clock() - start
            probe = load.send(Arrival(load.clock(), caller, next(texts), trial.tokens))
            # A probe that is queued says nothing until it runs: it is the one request that waits.
            if await _answer(probe, plan.trial_seconds) < 400:
                return Probed(told, last, sent, reference.record().code, fillers)
            last = sent
        raise RuntimeError(f"still refused {plan.trial_seconds:.0f} s after the last request but probes")


async def _fill(load: Load, caller: Caller, trial: Trial, texts: Iterator[str]) -> int:
    """Send batches until one of them is refused in part; returns how many were not."""
    sent: list[Exchange] = []
    while len(sent) < MOST_FILLERS:
        batch = [load.send(Arrival(load.clock(), caller, next(texts), trial.tokens)) for _ in range(trial.batch)]
        sent += batch
        await asyncio.wait([one.over for one in batch], timeout=trial.pause_seconds)
        if any(_is_refusal(one) for one in sent):
            await asyncio.wait([one.over for one in batch], timeout=ANSWER_SECONDS)
            return sum(not _is_refusal(one) for one in sent)
    raise RuntimeError(f"{MOST_FILLERS} requests were accepted and none refused: nothing to tell the truth of")


async def _refused(load: Load, caller: Caller, trial: Trial, texts: Iterator[str]) -> Exchange:
    """Send one more until it is refused: a place may have come free since."""
    for _ in range(100):
        exchange = load.send(Arrival(load.clock(), caller, next(texts), trial.tokens))
        await exchange.ended(NEXT_SECONDS)
        if _is_refusal(exchange):
            return exchange
    raise RuntimeError("the server refused one of a batch and then accepted 100 more")


async def _answer(exchange: Exchange, seconds: float) -> int:
    """The status, once it comes; the request is cancelled at once when it is accepted."""
    await asyncio.wait([exchange.started], timeout=seconds)
    status = exchange.started.result() if exchange.started.done() else 0
    if status == 0:
        raise RuntimeError(f"a probe had no answer within {seconds:.0f} s")
    if status < 400:
        exchange.cut()
    else:
        await exchange.ended()
    return int(status)


def _is_refusal(exchange: Exchange) -> bool:
    return exchange.over.done() and exchange.record().outcome == "refused"
