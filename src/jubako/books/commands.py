"""The commands `jubako audit …` and `jubako usage`: options in, text and exit status out. Both only read."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jubako import settings
from jubako.errors import StartupFault
from jubako.settings import Settings

if TYPE_CHECKING:
    from jubako.books.usage import Row

MAX_TOLD = 100
"""Faults that `audit verify` prints; more of them say nothing more."""

project_option = click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path(),
    show_default="the current folder",
    help="The folder that holds configuration/.",
)


@click.group()
def audit() -> None:
    """Verify the audit's chain of lines."""


@audit.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH]…")
@project_option
def verify(paths: tuple[Path, ...], project: Path) -> None:
    """Find altered, missing, doubled, moved and cut-off lines; exit 1 if there are any.

    A PATH is a journal's folder, or files of one, in order; without one, the folder of the settings is read. For files
    alone nothing tells whether lines before the first or after the last are missing. May run beside the server.
    """
    from jubako.books.verify import Verification, verify_files, verify_folder

    if not paths:
        root = project.resolve()
        paths = (root / settings.load(root).server.books.audit_folder,)
        if not paths[0].is_dir():
            raise StartupFault(f"{paths[0]}: there is no audit yet; the first start of the server makes it")
    for path in paths:
        if not (path.is_file() or path.is_dir()):
            raise StartupFault(f"{path}: is neither a file nor a folder")
    wrong = lines = 0
    single = [path for path in paths if path.is_file()]
    for folder in (path for path in paths if path.is_dir()):
        count = Verification()
        wrong += _tell(verify_folder(folder, count))
        lines += count.lines
        for aside in sorted(folder.glob("torn-*")):
            click.echo(f"{aside}: set aside at a start: a line that was not finished", err=True)
    if single:
        count = Verification()
        wrong += _tell(verify_files(single, count))
        lines += count.lines
    if wrong:
        raise StartupFault(
            f"the audit is not as it was written: {_count(wrong, 'fault')}; "
            f"right by themselves: {_count(lines, 'line')}"
        )
    click.echo(f"{_count(lines, 'line')}, no faults")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _tell(faults: Iterable[str]) -> int:
    count = 0
    for fault in faults:
        count += 1
        if count <= MAX_TOLD:
            click.echo(fault, err=True)
    if count > MAX_TOLD:
        click.echo(f"… and {count - MAX_TOLD} more", err=True)
    return count


def _day(_context: click.Context, _option: click.Parameter, value: datetime | None) -> date | None:
    return None if value is None else value.date()


@click.command()
@click.option("--tenant", "tenants", multiple=True, help="Of this tenant only; may be given several times.")
@click.option("--key", "keys", multiple=True, help="Of the key with this id only; may be given several times.")
@click.option("--from", "first_day", type=click.DateTime(["%Y-%m-%d"]), callback=_day, help="The first day, UTC.")
@click.option("--to", "last_day", type=click.DateTime(["%Y-%m-%d"]), callback=_day, help="The last day, included.")
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(["day", "month", "tenant", "key", "alias"]),
    help="What to sum by; may be given several times.  [default: day and tenant]",
)
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@project_option
def usage(
    *,
    tenants: tuple[str, ...],
    keys: tuple[str, ...],
    first_day: date | None,
    last_day: date | None,
    by: tuple[str, ...],
    form: str,
    project: Path,
) -> None:
    """Show what tenants used, from the ledger's daily sums. Days are UTC; may run beside the server."""
    from jubako.books import database
    from jubako.books.usage import Question, answer

    if first_day is not None and last_day is not None and last_day < first_day:
        raise click.BadParameter(f"{last_day} is before {first_day}", param_hint="--to")
    if first_day is not None and first_day > datetime.now(UTC).date():
        click.echo(f"jubako: {first_day} has not begun: days are UTC", err=True)
    root = project.resolve()
    loaded = settings.load(root)
    books = loaded.server.books
    password_file = None if books.ledger_password_file is None else root / books.ledger_password_file
    question = Question(tuple(dict.fromkeys(by)) or ("day", "tenant"), tenants, keys, first_day, last_day)
    address = database.url(books.ledger_url, root / books.ledger_sqlite_file)
    rows, taken = answer(address, password_file, question)
    {"table": _print_table, "csv": _print_csv, "json": _print_json}[form](rows, question.by)
    _warn_if_behind(loaded, taken)


def _warn_if_behind(loaded: Settings, taken: dict[str, int]) -> None:
    """A server that is stopped, or whose database is away, has lines that are not in the sums yet."""
    from jubako.books.journal import BrokenJournal, read_head

    try:
        head = read_head(loaded.root / loaded.server.books.audit_folder)
    except (BrokenJournal, OSError):
        return  # `jubako audit verify` is there for that
    behind = 0 if head is None else head.sequence - taken.get(head.journal, 0)
    if behind > 0:
        click.echo(f"jubako: {behind} requests of this server's audit are not in the ledger yet", err=True)


def _print_json(rows: list[Row], _by: tuple[str, ...]) -> None:
    click.echo(json.dumps(rows, indent=2))


def _print_csv(rows: list[Row], by: tuple[str, ...]) -> None:
    from jubako.books.usage import NUMBERS

    text = io.StringIO()
    writer = csv.DictWriter(text, [*by, *NUMBERS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    click.echo(text.getvalue(), nl=False)


def _print_table(rows: list[Row], by: tuple[str, ...]) -> None:
    from jubako.books.usage import NUMBERS, total

    sums: Row = dict.fromkeys(by, "-")
    sums[by[0]] = "total"
    sums.update(total(rows))
    titles = [*by, *NUMBERS]
    cells = [titles, *([_shown(row[title]) for title in titles] for row in (*rows, sums))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(titles))]
    for line in cells:
        aligned = [
            cell.ljust(width) if column < len(by) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        sys.stdout.write("  ".join(aligned).rstrip() + "\n")


def _shown(value: str | int) -> str:
    """A number with its thousands apart; text that a terminal would not show as it is, escaped; a dash for none."""
    if isinstance(value, int):
        return f"{value:,}"
    return (value if value.isprintable() else ascii(value)[1:-1]) or "-"
