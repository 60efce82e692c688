"""The account of one request: filled in by the steps as they learn it, told once at the end, whatever the end is.

Owns the order in which an end is told: the audit first, because a request that cannot be put on record must fail; then
metrics, spans and the log's line, which always agree with each other. Knows nothing of how a request is answered.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace

from jubako.books.audit import AuditFault
from jubako.books.books import Books
from jubako.errors import Unavailable
from jubako.telemetry import logs
from jubako.telemetry.metrics import UNKNOWN_ROUTE, Metrics
from jubako.telemetry.tracing import Tracing
from jubako.vocabulary import Account, Outcome, Principal, Usage

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Entry:
    """What is known of one request so far. Times are monotonic seconds; zero is never."""

    request_id: str
    started_at: float
    traceparent: str | None = None
    """The request's header of that name."""
    route: str = UNKNOWN_ROUTE
    principal: Principal | None = None
    alias: str = ""
    stream: bool = False
    usage: Usage = field(default_factory=Usage)
    """The engine writes it."""
    queued_at: float = 0.0
    admitted_at: float = 0.0
    told: bool = False

    def account(self, outcome: Outcome, code: str, status: int, *, release: str, adapters: frozenset[str]) -> Account:
        """The request as it is at this moment, which is its end."""
        now = time.monotonic()
        principal, first_token_at = self.principal, self.usage.first_token_at
        return Account(
            ended_at=time.time(),
            request_id=self.request_id,
            tenant="" if principal is None else principal.tenant,
            key_id="" if principal is None else principal.key_id,
            route=self.route,
            alias=self.alias,
            adapter=self.alias in adapters,
            release=release,
            stream=self.stream,
            status=status,
            outcome=outcome,
            code=code,
            priority=0 if principal is None else principal.policy.priority,
            usage=replace(self.usage),
            queue_seconds=(self.admitted_at or now) - self.queued_at if self.queued_at else 0.0,
            first_token_seconds=max(first_token_at - self.started_at, 0.0) if first_token_at else 0.0,
            total_seconds=now - self.started_at,
        )


@dataclass(frozen=True, slots=True)
class Accounts:
    """Where the end of every request is told."""

    books: Books
    metrics: Metrics
    tracing: Tracing
    release: str
    """The release digest."""
    adapters: frozenset[str]
    """Those of the served names that are adapters."""

    def require_healthy(self) -> None:
        """Refuse a request that could not be put on record."""
        self.books.require_healthy()

    def tell(self, entry: Entry, outcome: Outcome, code: str, status: int, *, sent_status: int = 0) -> None:
        """Tell the end of a request, before its last bytes are sent; a second end of the same request is not told.

        `status` is what is about to be sent unless a reply was begun, with `sent_status`. Raises `Unavailable` if the
        end cannot be put on record: its caller must hear so, and what operators are told is what the caller hears.
        """
        if entry.told:
            return
        entry.told = True
        status = sent_status or status
        account = entry.account(outcome, code, status, release=self.release, adapters=self.adapters)
        try:
            self.books.record(account)
        except AuditFault:
            fault = Unavailable("The server could not put the request on record.", code="not_ready")
            account = _unrecorded(account, fault, sent_status or fault.status)
            raise fault from None
        finally:
            self._tell_operators(entry, account)

    def _tell_operators(self, entry: Entry, account: Account) -> None:
        queued_after_seconds = entry.queued_at - entry.started_at if entry.queued_at else 0.0
        trace_id = ""
        try:
            trace_id = self.tracing.trace(
                account, queued_after_seconds=queued_after_seconds, traceparent=entry.traceparent
            )
        except Exception as error:  # noqa: BLE001 - no request fails because of its spans
            logger.error("a request could not be traced: %s", logs.place(error))
        self.metrics.record(account, trace_id)
        logs.request_ended(account, trace_id)


def _unrecorded(account: Account, fault: Unavailable, status: int) -> Account:
    """`account` as its caller hears of it now: one who left hears nothing, and what was refused had not begun."""
    if account.outcome is Outcome.CANCELLED:
        return account
    outcome = Outcome.REFUSED if account.outcome is Outcome.REFUSED else Outcome.FAILED
    return replace(account, outcome=outcome, code=fault.code, status=status)
