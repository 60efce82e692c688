"""The smoke gate: the release's own prompts, asked greedily of the engine that is about to serve.

An engine can be up, healthy and wrong; only its answers show it. The prompts and answers are the release's, so they
may be shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jubako.engine.port import Engine
from jubako.errors import Refusal
from jubako.vocabulary import Budget, Call, Demand, Document, Limits, Policy, Principal, Route


class SmokePrompt(Protocol):
    """One prompt of the release with the answer expected; exactly one of `messages` and `prompt` is given."""

    @property
    def name(self) -> str:
        """What a failure is called."""

    @property
    def messages(self) -> Sequence[Any] | None:
        """The conversation, or null."""

    @property
    def prompt(self) -> str | None:
        """The text to complete, or null."""

    @property
    def max_tokens(self) -> int:
        """How many tokens at most."""

    @property
    def expected(self) -> str:
        """The whole answer."""


class SmokeFailure(Exception):
    """The engine gave another answer than the release expects."""


async def run(engine: Engine, prompts: Sequence[SmokePrompt], alias: str, limits: Limits) -> None:
    """Ask every prompt; raises `SmokeFailure` naming each that failed, what was expected and what was found."""
    principal = _principal(limits)
    failures = []
    for number, prompt in enumerate(prompts):
        found = await _ask(engine, prompt, alias, f"smoke-{number}", principal)
        if found != prompt.expected:
            failures.append(f"smoke prompt {prompt.name!r}: expected {prompt.expected!r}, found {found!r}")
    if failures:
        raise SmokeFailure("\n".join(failures))


def _principal(limits: Limits) -> Principal:
    """Nobody's: the smoke prompts are asked before anyone is let in, and pass neither the gate nor the budgets."""
    policy = Policy(
        models=None,
        scopes=frozenset(),
        weight=1,
        priority=0,
        deadline_seconds=math.inf,
        queue_seconds=0,
        limits=limits,
        tenant_budget=Budget(),
        key_budget=Budget(),
    )
    return Principal("smoke", "smoke", frozenset(), policy)


async def _ask(engine: Engine, prompt: SmokePrompt, alias: str, request_id: str, principal: Principal) -> str:
    body: dict[str, Any] = {"model": alias, "max_tokens": prompt.max_tokens, "temperature": 0, "seed": 0}
    if prompt.messages is not None:
        route = Route.CHAT
        body["messages"] = [_plain(message) for message in prompt.messages]
    else:
        route = Route.COMPLETIONS
        body["prompt"] = prompt.prompt
    demand = Demand(alias, prompts=1, choices=1, prompt_tokens=0, output_tokens=prompt.max_tokens, grammar=False)
    call = Call(route, request_id, body, principal, demand, cache_salt="smoke")
    try:
        reply = await engine.answer(call)
    except Refusal as refusal:
        return f"an error: {refusal.code}: {refusal.message}"
    if not isinstance(reply, Document):
        return "a stream that was not asked for"
    choice = json.loads(reply.body)["choices"][0]
    text = choice["message"]["content"] if route is Route.CHAT else choice["text"]
    return str(text)


def _plain(message: Any) -> Mapping[str, Any]:
    plain: Mapping[str, Any] = message if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    return plain
