"""What was used, summed as an operator asks: from the ledger's daily sums, read only. Knows nothing of lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection  # noqa: TC002 - loaded as a whole, late

from jubako.books import database
from jubako.books.schema import COUNTS, TOKENS, journals, usage_daily
from jubako.errors import StartupFault

GROUPS: Mapping[str, str] = {"day": "day", "month": "day", "tenant": "tenant", "key": "key_id", "alias": "alias"}
"""What can be summed by -> the column it is made from."""
MONTH_CHARACTERS = len("2026-01")
NUMBERS = (*COUNTS, *TOKENS)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for; empty means all. Both days are included."""

    by: tuple[str, ...]
    tenants: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    first_day: date | None = None
    last_day: date | None = None


Row = dict[str, str | int]


def answer(address: URL, password_file: Path | None, question: Question) -> tuple[list[Row], dict[str, int]]:
    """One row a group, in order, and the line up to which each audit is booked. Raises `StartupFault`."""
    where = str(address.database) if address.get_backend_name() == "sqlite" else "books.ledger_url"
    if address.get_backend_name() == "sqlite":
        _require_file(Path(where))
    engine = database.engine(address, password_file, read_only=True)
    try:
        with engine.begin() as connection:
            if not database.is_current(connection):
                raise StartupFault(
                    f"{where}: the ledger is of an earlier version; the next start of the server brings it to this one"
                )
            taken = {
                str(row[0]): int(row[1])
                for row in connection.execute(sa.select(journals.c.journal, journals.c.sequence))
            }
            return _fold(_sums(connection, question), question.by), taken
    except sa.exc.SQLAlchemyError as error:
        origin = getattr(error, "orig", None) or error
        reason = (str(origin).strip() or type(origin).__name__).splitlines()[0]
        raise StartupFault(f"{where}: the ledger cannot be read: {reason}") from None
    except (OSError, UnicodeDecodeError) as error:  # of the password's file: the driver's are above
        raise StartupFault(f"books.ledger_password_file: {password_file}: cannot be read: {error}") from None
    finally:
        engine.dispose()


def _require_file(file: Path) -> None:
    """A ledger that the next message would call something else; raises `StartupFault`."""
    try:
        with file.open("rb"):
            pass
    except FileNotFoundError:
        raise StartupFault(f"{file}: there is no ledger yet; the first start of the server makes it") from None
    except OSError as error:
        raise StartupFault(f"{file}: the ledger cannot be read: {error.strerror}") from None


def _sums(connection: Connection, question: Question) -> Iterable[Sequence[object]]:
    columns = [usage_daily.c[name] for name in _columns(question.by)]
    sums = [sa.cast(sa.func.coalesce(sa.func.sum(usage_daily.c[name]), 0), sa.BigInteger) for name in NUMBERS]
    statement = sa.select(*columns, *sums)
    if columns:
        statement = statement.group_by(*columns).order_by(*columns)
    if question.tenants:
        statement = statement.where(usage_daily.c.tenant.in_(question.tenants))
    if question.keys:
        statement = statement.where(usage_daily.c.key_id.in_(question.keys))
    if question.first_day is not None:
        statement = statement.where(usage_daily.c.day >= question.first_day.isoformat())
    if question.last_day is not None:
        statement = statement.where(usage_daily.c.day <= question.last_day.isoformat())
    return [tuple(row) for row in connection.execute(statement)]


def _columns(by: tuple[str, ...]) -> list[str]:
    """Each column once: a month is made of its days."""
    return list(dict.fromkeys(GROUPS[group] for group in by))


def _fold(found: Iterable[Sequence[object]], by: tuple[str, ...]) -> list[Row]:
    names = _columns(by)
    sums: dict[tuple[str, ...], list[int]] = {}
    for values in found:
        columns = {name: str(value) for name, value in zip(names, values, strict=False)}
        group = tuple(columns[GROUPS[one]][: MONTH_CHARACTERS if one == "month" else None] for one in by)
        numbers = [int(str(value)) for value in values[len(names) :]]
        sums[group] = [a + b for a, b in zip(sums[group], numbers, strict=True)] if group in sums else numbers
    rows = []
    for group in sorted(sums):
        one: Row = dict(zip(by, group, strict=True))
        one.update(zip(NUMBERS, sums[group], strict=True))
        rows.append(one)
    return rows


def total(rows: Iterable[Row]) -> dict[str, int]:
    """All numbers added up."""
    result = dict.fromkeys(NUMBERS, 0)
    for row in rows:
        for name in NUMBERS:
            result[name] += int(row[name])
    return result
