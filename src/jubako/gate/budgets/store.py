"""What a store of budgets has to do, and the records it is asked with and answers by.

Every operation is atomic and may be repeated without harm: a store that does not answer is asked again. Knows nothing
of principals, refusals or how anything is kept.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from jubako.gate.budgets.windows import Standing
from jubako.vocabulary import Budget

KEPT_SECONDS = 86_400
"""A reservation whose process went silent is remembered this long, so that a late settlement still counts."""


class StoreAway(Exception):
    """The store did not answer: locked, unreachable, broken. The text is for the operator's log."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One account that a request draws on, and the budget it must keep."""

    account: str
    budget: Budget


@dataclass(frozen=True, slots=True)
class Take:
    """Take one request, one place and the tokens from every account, or from none."""

    number: int
    """The reservation, among those of this process; never used twice."""
    tokens: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class Amend:
    """Hold `tokens` in all; more are taken at the present second, fewer given back to the second they were taken at."""

    number: int
    tokens: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class End:
    """End a reservation. One that is not there has ended before."""

    number: int
    tokens: int | None
    """What was used; None gives everything back, the request too."""
    doubtful: bool = False
    """Whether the store may not have taken it yet, and must refuse it when it comes to do so."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a `Take` or `Amend`, or of ends. `standings` are one for each claim: before it; after ends."""

    granted: bool
    now: float
    """The clock that the store went by."""
    standings: tuple[Standing, ...]
    known: bool = True
    """False: there is no such reservation (`Amend`), or it was ended before it was taken (`Take`)."""


class Store(Protocol):
    """Keeps accounts and reservations of one instance of the server, beside those of others.

    What a request asks for is answered at once by a store that can, and else to be awaited.
    """

    async def open(self) -> None:
        """Connect; raises `StartupFault`."""

    def take(self, take: Take) -> Answer | Awaitable[Answer]:
        """Decide on a request; raises `StoreAway`."""

    def amend(self, amend: Amend) -> Answer | Awaitable[Answer]:
        """Change what is held; raises `StoreAway`."""

    def end(self, ends: tuple[End, ...], claims: tuple[Claim, ...] = ()) -> Answer | Awaitable[Answer]:
        """End reservations, and say how the accounts of `claims` stand after it; raises `StoreAway`."""

    async def beat(self) -> None:
        """Renew the lease of this instance, free what others let lapse, forget what is old; raises `StoreAway`."""

    async def leave(self) -> None:
        """Free all that this instance holds, and its lease; raises `StoreAway`."""

    async def close(self) -> None:
        """Disconnect; never raises."""
