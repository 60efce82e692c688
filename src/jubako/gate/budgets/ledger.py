"""The tables of the SQLite store, and each operation as statements inside one transaction that its caller holds.

Knows nothing of threads, of waiting for locks, or of who asks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from jubako.errors import StartupFault
from jubako.gate.budgets.store import KEPT_SECONDS, Amend, Answer, Claim, End, Take
from jubako.gate.budgets.windows import Account, fits, spans

APPLICATION = 0x4A55424B
VERSION = 1
PRUNED_ACCOUNTS = 1000
"""Looked at each time for being idle: all get their turn, and no turn takes long."""

_SCHEMA = (
    "CREATE TABLE accounts (name TEXT PRIMARY KEY, expires INTEGER, state BLOB NOT NULL) STRICT",
    "CREATE TABLE leases (instance TEXT PRIMARY KEY, expires REAL NOT NULL) STRICT, WITHOUT ROWID",
    # Of the tenant's account and the key's, either may be absent. A reservation that was reaped stays, with no tokens.
    """CREATE TABLE reservations (
        instance TEXT NOT NULL, number INTEGER NOT NULL,
        one TEXT NOT NULL, one_counted INTEGER NOT NULL, two TEXT, two_counted INTEGER,
        requested_at INTEGER NOT NULL, tokens_at INTEGER NOT NULL, tokens INTEGER NOT NULL, reaped_at INTEGER,
        PRIMARY KEY (instance, number)) STRICT, WITHOUT ROWID""",
    "CREATE INDEX reaped ON reservations (reaped_at) WHERE reaped_at IS NOT NULL",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
_HELD = "one, one_counted, two, two_counted, requested_at, tokens_at, tokens, reaped_at"


def prepare(connection: sqlite3.Connection) -> None:
    """Check that the file is ours, whole and of this version; make the tables in an empty one."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables and not application:
        for statement in _SCHEMA:
            connection.execute(statement)
    elif application != APPLICATION:
        raise StartupFault("it is a database of something else")
    elif version != VERSION:
        raise StartupFault(f"it has schema version {version}, and this Jubako knows version {VERSION} only")
    connection.execute("COMMIT")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StartupFault("it is damaged")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StartupFault("its file system has no shared memory for SQLite's write-ahead log")


@dataclass(frozen=True, slots=True)
class Held:
    """A reservation as it is kept."""

    accounts: tuple[tuple[str, int], ...]
    """Names, and the spans that each counts."""
    requested_at: int
    tokens_at: int
    tokens: int
    reaped_at: int | None


class Ledger:
    """One instance's hand in the file. Accounts are read once and written once a transaction."""

    def __init__(
        self, connection: sqlite3.Connection, instance: str, lease_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._execute = connection.execute
        self._instance = instance
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._leases_seen = False
        self._pruned_to = ""

    def begin(self) -> None:
        """Take the file's write lock; raises `sqlite3.OperationalError` while another has it."""
        self._execute("BEGIN IMMEDIATE")
        self._accounts.clear()
        self._leases_seen = False

    def commit(self) -> None:
        """Write the accounts that were touched, and end the transaction."""
        second = int(self._clock())
        for name, account in self._accounts.items():
            expires = account.expires()
            if expires is not None and expires <= second:
                self._execute("DELETE FROM accounts WHERE name = ?", (name,))
                continue
            self._execute(
                "INSERT INTO accounts VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET expires = excluded.expires, "
                "state = excluded.state",
                (name, expires, account.pack()),
            )
        self._execute("COMMIT")

    def take(self, take: Take) -> Answer:
        """See `Store.take`."""
        now = self._clock()
        second = int(now)
        self._see_leases(now)
        sides = [(claim, self._account(claim.account, second)) for claim in take.claims]
        standings = tuple(account.standing(claim.budget, 1, take.tokens) for claim, account in sides)
        granted = all(
            fits(standing, claim.budget, 1, take.tokens) for standing, claim in zip(standings, take.claims, strict=True)
        )
        if granted:
            counted = [(claim.account, spans(claim.budget)) for claim in take.claims]
            for (_, account), (_, bits) in zip(sides, counted, strict=True):
                account.under_way += 1
                account.add(second, bits, 1, take.tokens)
            two = counted[1] if len(counted) > 1 else (None, None)
            self._execute(
                "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                (self._instance, take.number, *counted[0], *two, second, second, take.tokens),
            )
        return Answer(granted, now, standings)

    def amend(self, amend: Amend) -> Answer:
        """See `Store.amend`."""
        now = self._clock()
        second = int(now)
        held = self._held(amend.number)
        if held is None:
            return Answer(granted=False, now=now, standings=(), known=False)
        more = amend.tokens > held.tokens
        at = second if more else held.tokens_at
        for name, counted in held.accounts:
            self._account(name, second).add(held.tokens_at, counted, 0, -held.tokens)
        wanted = amend.tokens if more else 0
        standings = tuple(
            self._account(claim.account, second).standing(claim.budget, 0, wanted) for claim in amend.claims
        )
        granted = all(
            fits(standing, claim.budget, 0, wanted) for standing, claim in zip(standings, amend.claims, strict=True)
        )
        tokens, at = (amend.tokens, at) if granted else (held.tokens, held.tokens_at)
        for name, counted in held.accounts:
            self._account(name, second).add(at, counted, 0, tokens)
        if granted:
            self._execute(
                "UPDATE reservations SET tokens = ?, tokens_at = ? WHERE instance = ? AND number = ?",
                (tokens, at, self._instance, amend.number),
            )
        return Answer(granted, now, standings)

    def end(self, end: End) -> None:
        """See `Store.end`."""
        row = self._execute(
            f"DELETE FROM reservations WHERE instance = ? AND number = ? RETURNING {_HELD}",  # noqa: S608 - constant
            (self._instance, end.number),
        ).fetchone()
        if row is None:
            return
        held = _read(row)
        second = int(self._clock())
        for name, counted in held.accounts:
            account = self._account(name, second)
            account.add(held.tokens_at, counted, 0, (end.tokens or 0) - held.tokens)
            if end.tokens is None:
                account.add(held.requested_at, counted, -1, 0)
            if held.reaped_at is None:
                account.under_way = max(0, account.under_way - 1)

    def standings(self, claims: tuple[Claim, ...]) -> Answer:
        """How the accounts stand now."""
        now = self._clock()
        sides = [(self._account(claim.account, int(now)), claim.budget) for claim in claims]
        return Answer(
            granted=True, now=now, standings=tuple(account.standing(budget, 0, 0) for account, budget in sides)
        )

    def beat(self) -> None:
        """See `Store.beat`."""
        now = self._clock()
        self._renew(now)
        self._see_leases(now)
        self._execute("DELETE FROM reservations WHERE reaped_at < ?", (int(now) - KEPT_SECONDS,))
        names = self._execute(
            "SELECT name, expires FROM accounts WHERE name > ? ORDER BY name LIMIT ?",
            (self._pruned_to, PRUNED_ACCOUNTS),
        ).fetchall()
        self._pruned_to = names[-1][0] if len(names) == PRUNED_ACCOUNTS else ""
        for name, expires in names:
            if expires is not None and expires <= now and name not in self._accounts:
                self._execute("DELETE FROM accounts WHERE name = ?", (name,))

    def leave(self) -> None:
        """See `Store.leave`."""
        self._reap(self._instance, int(self._clock()))
        self._execute("DELETE FROM reservations WHERE instance = ?", (self._instance,))
        self._execute("DELETE FROM leases WHERE instance = ?", (self._instance,))

    def _renew(self, now: float) -> None:
        self._execute(
            "INSERT INTO leases VALUES (?, ?) ON CONFLICT DO UPDATE SET expires = excluded.expires",
            (self._instance, now + self._lease_seconds),
        )

    def _see_leases(self, now: float) -> None:
        """Free what others let lapse. Whoever asks is alive, whatever its lease says."""
        if self._leases_seen:
            return
        self._leases_seen = True
        own = False
        for instance, expires in self._execute("SELECT instance, expires FROM leases").fetchall():
            if instance == self._instance:
                own = expires > now
            elif expires <= now:
                self._reap(instance, int(now))
                self._execute("DELETE FROM leases WHERE instance = ?", (instance,))
        if not own:
            self._renew(now)

    def _reap(self, instance: str, second: int) -> None:
        rows = self._execute(
            f"SELECT {_HELD} FROM reservations WHERE instance = ? AND (reaped_at IS NULL OR tokens > 0)",  # noqa: S608
            (instance,),
        ).fetchall()
        for held in map(_read, rows):
            for name, counted in held.accounts:
                account = self._account(name, second)
                account.add(held.tokens_at, counted, 0, -held.tokens)
                if held.reaped_at is None:
                    account.under_way = max(0, account.under_way - 1)
        self._execute("UPDATE reservations SET tokens = 0, reaped_at = ? WHERE instance = ?", (second, instance))

    def _held(self, number: int) -> Held | None:
        row = self._execute(
            f"SELECT {_HELD} FROM reservations WHERE instance = ? AND number = ?",  # noqa: S608 - constant
            (self._instance, number),
        ).fetchone()
        return None if row is None else _read(row)

    def _account(self, name: str, second: int) -> Account:
        account = self._accounts.get(name)
        if account is None:
            row = self._execute("SELECT state FROM accounts WHERE name = ?", (name,)).fetchone()
            account = self._accounts[name] = Account() if row is None else Account.unpack(row[0])
        account.advance(second)
        return account


def _read(row: tuple[str, int, str | None, int | None, int, int, int, int | None]) -> Held:
    one, one_counted, two, two_counted, requested_at, tokens_at, tokens, reaped_at = row
    accounts = ((one, one_counted),) if two is None or two_counted is None else ((one, one_counted), (two, two_counted))
    return Held(accounts, requested_at, tokens_at, tokens, reaped_at)
