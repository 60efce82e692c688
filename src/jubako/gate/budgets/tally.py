"""What one instance remembers of an SQLite file while it is its turn there: accounts, and its own reservations.

Decides in memory, with the arithmetic of `windows`. What it does not remember it says by `Missing`, before anything is
changed: somebody else looks it up. What was done and is not on disk yet is kept as a list of deeds, so that it can be
done again. Knows nothing of files, threads, or who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jubako.gate.budgets.store import Amend, Answer, Claim, End, Take
from jubako.gate.budgets.windows import Account, Standing, fits, spans

ACCOUNTS_KEPT = 4096
"""Those that were used last; some 6 KB each if they are busy all the time."""
NEVER_SEEN = float("-inf")


class Missing(Exception):
    """Not remembered: an account, a reservation (a number), or what the leases are (None)."""

    def __init__(self, what: str | int | None) -> None:
        self.what = what
        super().__init__(what)


@dataclass(slots=True)
class Held:
    """A reservation as it is kept."""

    accounts: tuple[tuple[str, int], ...]
    """Names, and the spans that each counts."""
    requested_at: int
    tokens_at: int
    tokens: int
    reaped_at: int | None = None
    on_disk: bool = True
    """Whether the file has a row of it, or is about to."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A granted `Take`, or a granted `Amend` if `held` is None, at a second of the clock."""

    number: int
    second: int
    tokens: int
    held: tuple[tuple[str, int], ...] | None


Deed = Taken | End


@dataclass(slots=True)
class Changes:
    """What the file has to be told."""

    accounts: list[tuple[str, int | None, bytes]] = field(default_factory=list)
    """Name, the second that it expires at, and its state."""
    idle_accounts: list[str] = field(default_factory=list)
    """They say nothing any more."""
    reservations: list[tuple[int, Held]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)


class Tally:
    """Accounts and reservations in memory, and what of them is not on disk yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        """Those used last stand last, as of the last `changes`."""
        self._held: dict[int, Held | None] = {}
        """None: the file was asked, and has none."""
        self._touched: dict[str, Account] = {}
        self._changed: dict[int, Held | None] = {}
        """Since the last `changes`; None: it has ended, and the file has a row of it."""
        self.deeds: list[Deed] = []
        """What was granted or ended and is not on disk yet, in order."""
        self.leases_due = NEVER_SEEN
        """When the first of the known leases lapses: from then on none is granted before somebody has looked."""

    def take(self, take: Take) -> Answer:
        """See `Store.take`."""
        now = self._clock()
        if now >= self.leases_due:
            raise Missing(None)
        second = int(now)
        claims, tokens = take.claims, take.tokens
        sides = [self.account(claim.account, second) for claim in claims]
        standings = tuple(
            [account.standing(claim.budget, 1, tokens) for claim, account in zip(claims, sides, strict=True)]
        )
        granted = _all_fit(standings, claims, 1, tokens)
        if granted:
            counted = tuple([(claim.account, spans(claim.budget)) for claim in claims])
            self._do(Taken(take.number, second, tokens, counted))
        return Answer(granted, now, standings)

    def amend(self, amend: Amend) -> Answer:
        """See `Store.amend`."""
        now = self._clock()
        second = int(now)
        held = self._reservation(amend.number)
        if held is None:
            del self._held[amend.number]
            return Answer(granted=False, now=now, standings=(), known=False)
        accounts = [(self.account(name, second), counted) for name, counted in held.accounts]
        sides = [self.account(claim.account, second) for claim in amend.claims]
        wanted = amend.tokens if amend.tokens > held.tokens else 0
        for account, counted in accounts:
            account.add(held.tokens_at, counted, 0, -held.tokens)
            account.hold(0, -held.tokens)
        standings = tuple(
            account.standing(claim.budget, 0, wanted) for account, claim in zip(sides, amend.claims, strict=True)
        )
        for account, counted in accounts:
            account.add(held.tokens_at, counted, 0, held.tokens)
            account.hold(0, held.tokens)
        granted = _all_fit(standings, amend.claims, 0, wanted)
        if granted:
            self._do(Taken(amend.number, second, amend.tokens, None))
        return Answer(granted, now, standings)

    def end(self, ends: tuple[End, ...], claims: tuple[Claim, ...]) -> Answer:
        """See `Store.end`."""
        now = self._clock()
        second = int(now)
        for claim in claims:
            self.account(claim.account, second)
        for end in ends:
            held = self._reservation(end.number)
            for name, _ in held.accounts if held is not None else ():
                self.account(name, second)
        for end in ends:
            self._do(end)
        standings = tuple([self.account(claim.account, second).standing(claim.budget, 0, 0) for claim in claims])
        return Answer(granted=True, now=now, standings=standings)

    def redo(self, deed: Deed) -> None:
        """Do it upon what the file says now, whatever the limits are: it was answered."""
        second = int(self._clock())
        held = None
        if isinstance(deed, End) or deed.held is None:
            held = self._reservation(deed.number)
        names = deed.held if isinstance(deed, Taken) and deed.held is not None else held.accounts if held else ()
        for name, _ in names:
            self.account(name, second)
        self._apply(deed)

    def _do(self, deed: Deed) -> None:
        self._apply(deed)
        self.deeds.append(deed)

    def _apply(self, deed: Deed) -> None:
        """Count it; what it needs is remembered."""
        if isinstance(deed, End):
            self._end(deed)
        elif deed.held is not None:
            for name, counted in deed.held:
                account = self._accounts[name]
                account.hold(1, deed.tokens)
                account.add(deed.second, counted, 1, deed.tokens)
                self._touched[name] = account
            held = Held(deed.held, deed.second, deed.second, deed.tokens, on_disk=False)
            self._held[deed.number] = self._changed[deed.number] = held
        else:
            self._amend(deed)

    def _amend(self, deed: Taken) -> None:
        held = self._held[deed.number]
        if held is None:
            del self._held[deed.number]
            return
        at = deed.second if deed.tokens > held.tokens else held.tokens_at
        for name, counted in held.accounts:
            account = self._accounts[name]
            account.add(held.tokens_at, counted, 0, -held.tokens)
            account.add(at, counted, 0, deed.tokens)
            account.hold(0, deed.tokens - held.tokens)
            self._touched[name] = account
        held.tokens, held.tokens_at = deed.tokens, at
        self._changed[deed.number] = held

    def _end(self, end: End) -> None:
        held = self._held.pop(end.number, None)
        if held is None:
            return
        for name, counted in held.accounts:
            account = self._accounts[name]
            account.add(held.tokens_at, counted, 0, (end.tokens or 0) - held.tokens)
            if end.tokens is None:
                account.add(held.requested_at, counted, -1, 0)
            account.hold(-1 if held.reaped_at is None else 0, -held.tokens)
            self._touched[name] = account
        if held.on_disk:
            self._changed[end.number] = None
        else:
            self._changed.pop(end.number, None)

    def account(self, name: str, second: int) -> Account:
        """The account, with what is out of every window forgotten; raises `Missing`."""
        account = self._accounts.get(name)
        if account is None:
            raise Missing(name)
        if account.advanced_to != second:
            account.advance(second)
        return account

    def touch(self, name: str, account: Account) -> None:
        """The account was changed by somebody else."""
        self._touched[name] = account

    def _reservation(self, number: int) -> Held | None:
        try:
            return self._held[number]
        except KeyError:
            # One that has just ended may still have its row.
            if number in self._changed:
                self._held[number] = None
                return None
            raise Missing(number) from None

    def learn_account(self, name: str, account: Account) -> None:
        """What the file says, or that it says nothing: an empty one."""
        self._accounts[name] = account

    def learn_reservation(self, number: int, held: Held | None) -> None:
        """What the file says."""
        self._held[number] = held

    def forget(self) -> None:
        """What is remembered may not be so any more; the deeds are."""
        for one in (self._accounts, self._held, self._touched, self._changed):
            one.clear()
        self.leases_due = NEVER_SEEN

    def forget_reaped(self) -> None:
        """Those that were reaped: the file may have forgotten them."""
        for number in [number for number, held in self._held.items() if held is None or held.reaped_at is not None]:
            if number not in self._changed:
                del self._held[number]

    def changes(self) -> Changes:
        """What the file has to be told, from now on taken to be told. Forgets what was not used for long."""
        found, second = Changes(), int(self._clock())
        for name, account in self._touched.items():
            self._accounts[name] = self._accounts.pop(name)
            expires = account.expires()
            if expires is not None and expires <= second:
                found.idle_accounts.append(name)
            else:
                found.accounts.append((name, expires, account.pack()))
        for number, held in self._changed.items():
            if held is None:
                found.ended.append(number)
            else:
                held.on_disk = True
                found.reservations.append(
                    (number, Held(held.accounts, held.requested_at, held.tokens_at, held.tokens, held.reaped_at))
                )
        self._touched.clear()
        self._changed.clear()
        for name in list(self._accounts)[: max(0, len(self._accounts) - ACCOUNTS_KEPT)]:
            del self._accounts[name]
        return found


def _all_fit(standings: tuple[Standing, ...], claims: tuple[Claim, ...], places: int, tokens: int) -> bool:
    return all(fits(standing, claim.budget, places, tokens) for standing, claim in zip(standings, claims, strict=True))
