"""Budgets: what tenants and keys may use in a span of time, counted atomically.

    reserve -> (amend) -> end

A reservation takes one request, one place of concurrency and the most tokens the request can use from every budget
that applies, all or none. Its end replaces those tokens by the real ones, or gives everything back, the request too. A
process that dies leaves reservations that end by themselves when their lease runs out.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from jubako.vocabulary import Principal, Rates


class Reservation(Protocol):
    """What one request holds. It ends once; a second end does nothing."""

    @property
    def rates(self) -> Rates:
        """The limits a minute as the store last told of them: after the reservation, an `amend`, or the end.

        An end that the store has yet to be told of leaves them as they were.
        """

    async def amend(self, tokens: int) -> None:
        """Hold `tokens` in all from now on; raises `Busy` or `QuotaExhausted` if more than held and too many."""

    def end(self, tokens: int | None) -> Coroutine[Any, Any, None] | None:
        """End the reservation: `tokens` were used, or None, as if the request had not been made.

        Returns what waits until the store knows, to be awaited in any case; None if it does already.
        """


class Budgets(Protocol):
    """The counts of one server, or of several that share a store."""

    async def open(self) -> None:
        """Connect, and begin to keep this process's leases alive; raises `StartupFault`."""

    async def reserve(self, principal: Principal, tokens: int) -> Reservation:
        """Take what the request needs; raises `Busy` or `QuotaExhausted` (both with `rates`), and then takes nothing.

        Fails closed: raises `Unavailable` when the store cannot be reached.
        """

    async def close(self) -> None:
        """Give back what this process still holds, and disconnect."""
