"""Refuses schemas, regular expressions and grammars that are wrong or too costly, before vLLM sees them.

The work is done by a process of its own (`vetting_process`, `vetting_child`), one check at a time, tenants in turn;
this module owns the queue and the verdicts that are remembered. It knows nothing of requests: `constraints` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jubako.engine.vllm.vetting_child import Setting
from jubako.engine.vllm.vetting_process import CheckingProcess, closing
from jubako.errors import Busy, InternalError, InvalidRequest, Refusal
from jubako.sections import GrammarSettings

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PATIENCE = 5.0
"""A check may take this many times its processor time by the clock: it runs at low priority beside the engine."""
VERDICTS = 4096
WAITING = 64
WAITING_OF_ONE_TENANT = 16
KINDS = {
    "json": "JSON schema",
    "json_object": "JSON schema",
    "regex": "regular expression",
    "choice": "list of choices",
    "grammar": "grammar",
    "structural_tag": "structural tag",
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """One grammar as vLLM has it: the fields of its `StructuredOutputsParams` that are set."""

    fields: Mapping[str, Any]
    param: str | None
    """The request field that it came from."""

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return next((KINDS[name] for name in KINDS if self.fields.get(name) is not None), "grammar")

    def encoded(self) -> bytes:
        """Its canonical form: keys in the caller's order, because the order of properties is part of a grammar."""
        try:
            return json.dumps(dict(self.fields), separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise InvalidRequest(f"The {self.kind} is not valid JSON.", param=self.param) from None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the child said of one grammar."""

    ok: bool
    costly: bool = False
    reason: str = ""

    def refusal(self, constraint: Constraint) -> InvalidRequest:
        """What the caller is told."""
        if self.costly:
            return InvalidRequest(
                f"The {constraint.kind} is too costly {self.reason}. Make it smaller: fewer or lower bounds of "
                "repetition, shorter lists, less nesting.",
                param=constraint.param,
            )
        return InvalidRequest(f"The {constraint.kind} is not supported: {self.reason}", param=constraint.param)


@dataclass(slots=True)
class _Check:
    """One grammar that waits for its verdict, and how many callers wait for it."""

    key: bytes
    message: bytes
    result: asyncio.Future[Verdict]
    tenants: set[str] = field(default_factory=set)
    """In whose turn it may come; whichever is first."""
    waiters: int = 0
    taken: bool = False


@dataclass(slots=True)
class _Queue:
    """Checks by tenant; one of each in turn."""

    by_tenant: OrderedDict[str, deque[_Check]] = field(default_factory=OrderedDict)
    waiting: dict[bytes, _Check] = field(default_factory=dict)
    """Those that wait and the one under way."""
    served: str | None = None
    """The tenant of the last one taken: its next waits for everybody who came meanwhile."""

    def put(self, tenant: str, check: _Check) -> None:
        check.tenants.add(tenant)
        self.by_tenant.setdefault(tenant, deque()).append(check)
        self.waiting[check.key] = check

    def take(self) -> _Check | None:
        """The next one that somebody still waits for."""
        if self.served is not None and self.served in self.by_tenant:
            self.by_tenant.move_to_end(self.served)
        while self.by_tenant:
            tenant, checks = next(iter(self.by_tenant.items()))
            check = checks.popleft()
            if not checks:
                del self.by_tenant[tenant]
            if check.taken:
                continue
            check.taken = True
            if check.waiters:
                self.served = tenant
                return check
            del self.waiting[check.key]
        return None

    def full(self, tenant: str) -> bool:
        """Whether the tenant has to come later. Others may fill the queue, but a tenant's first place is its own."""
        own = len(self.by_tenant.get(tenant, ()))
        return own >= WAITING_OF_ONE_TENANT or (own > 0 and len(self.waiting) >= WAITING)


class Vetting:
    """The queue in front of the child, and what it said so far."""

    def __init__(self, setting: Setting) -> None:
        self._process = CheckingProcess(setting)
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._queue = _Queue()
        self._pump: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    def of_engine(cls, config: VllmConfig, grammar: GrammarSettings) -> Vetting:
        """For the engine that has `config`."""
        model, outputs = config.model_config, config.structured_outputs_config
        return cls(
            Setting(
                tokenizer=model.tokenizer,
                tokenizer_mode=model.tokenizer_mode,
                tokenizer_revision=model.tokenizer_revision,
                trust_remote_code=model.trust_remote_code,
                vocabulary_size=model.get_vocab_size(),
                model_type=model.hf_config.model_type,
                backend=outputs.backend,
                disable_any_whitespace=outputs.disable_any_whitespace,
                disable_additional_properties=outputs.disable_additional_properties,
                processor_seconds=grammar.check_seconds,
                wall_seconds=grammar.check_seconds * PATIENCE,
                memory_bytes=grammar.memory_bytes,
            )
        )

    @property
    def backend(self) -> str:
        """The backend that the engine is configured for."""
        return self._process.setting.backend

    @property
    def process_id(self) -> int | None:
        """That of the checking process, if it runs."""
        return self._process.process_id

    def warm(self) -> None:
        """Start the child now, in the background, so that the first grammar need not wait for it."""
        if self._warming is None and not self._closed:
            self._warming = asyncio.create_task(self._warm(), name="vetting-warm")

    async def _warm(self) -> None:
        with contextlib.suppress(Refusal):
            await self._process.start()

    async def vet(self, constraint: Constraint, tenant: str = "") -> None:
        """Return if the engine may have the grammar; raises `InvalidRequest`, `Busy` or `Unavailable`.

        Cancelling it gives up the place in the queue; a check under way ends by itself and is remembered.
        """
        message = constraint.encoded()
        key = hashlib.sha256(message).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = await self._queued(key, message, tenant)
        else:
            self._verdicts.move_to_end(key)
        if not verdict.ok:
            raise verdict.refusal(constraint)

    async def _queued(self, key: bytes, message: bytes, tenant: str) -> Verdict:
        if self._closed:
            raise closing()
        check = self._queue.waiting.get(key)
        if check is None or not (check.taken or tenant in check.tenants):
            if self._queue.full(tenant):
                raise Busy(
                    "Too many schemas and grammars wait to be checked.",
                    code="queue_full",
                    retry_after_seconds=self._process.setting.processor_seconds,
                )
            check = check or _new_check(key, message)
            self._queue.put(tenant, check)
            if self._pump is None or self._pump.done():
                self._pump = asyncio.create_task(self._work(), name="vetting")
        check.waiters += 1
        try:
            return await asyncio.shield(check.result)
        finally:
            check.waiters -= 1

    async def _work(self) -> None:
        """One check after the other until none waits."""
        while (check := self._queue.take()) is not None:
            try:
                verdict = await self._verdict(check.message)
            except Refusal as refusal:
                check.result.set_exception(refusal)
            except asyncio.CancelledError:
                check.result.set_exception(closing())
                raise
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave callers waiting
                failure = InternalError("The server had an internal error.")
                failure.__cause__ = error
                check.result.set_exception(failure)
            else:
                self._remember(check.key, verdict)
                check.result.set_result(verdict)
            finally:
                self._queue.waiting.pop(check.key, None)

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        self._verdicts[key] = verdict
        while len(self._verdicts) > VERDICTS:
            self._verdicts.popitem(last=False)

    async def _verdict(self, message: bytes) -> Verdict:
        answer = await self._process.check(message)
        if answer.get("late"):
            raise Busy(
                "The schema or grammar could not be checked in time.",
                code="queue_full",
                retry_after_seconds=self._process.setting.wall_seconds,
            )
        return Verdict(answer["ok"], answer.get("costly", False), answer.get("reason", ""))

    async def close(self) -> None:
        """End the child; whoever waits is told that the server ends."""
        self._closed = True
        for task in (self._warming, self._pump):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        while (check := self._queue.take()) is not None:
            check.result.set_exception(closing())
        self._queue.waiting.clear()
        await self._process.close()


def _new_check(key: bytes, message: bytes) -> _Check:
    check = _Check(key, message, asyncio.get_running_loop().create_future())
    # Whoever waits takes the exception; nobody may be left to.
    check.result.add_done_callback(lambda done: done.cancelled() or done.exception())
    return check
