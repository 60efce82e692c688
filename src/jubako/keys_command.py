"""`jubako keys`: make, list, revoke and replace API keys. A key is shown once, on standard output, alone."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from jubako import documents, settings
from jubako.errors import StartupFault
from jubako.gate import demo, keys, tenants
from jubako.gate.keys import KeyRecord
from jubako.gate.tenants import Tenant, Tenants
from jubako.project import project_option
from jubako.vocabulary import Scope

MAXIMUM_DURATION = timedelta(days=3660)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Duration(click.ParamType[timedelta]):
    """`90d`, `12h`, `30m`, `45s`; at most ten years."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The duration that `value` says."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"([0-9]{1,9})([smhd])", str(value))
        duration = timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else None
        if duration is None or duration > MAXIMUM_DURATION:
            self.fail(f"{value!r} is no duration: write 90d, 12h, 30m or 45s, up to ten years", param, ctx)
        return duration


@click.group("keys")
def keys_group() -> None:
    """Make, list, revoke and replace API keys."""


@keys_group.command()
@click.argument("tenant")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in Scope]),
    help="What the key may be used for, of what the tenant may; again for more.  [default: all of it]",
)
@click.option("--expires", type=Duration(), metavar="DURATION", help="Refuse the key after this: 90d, 12h, 30m.")
@click.option("--name", metavar="TEXT", help="What it is for; shown by `list`, never checked.")
@project_option
def create(tenant: str, scopes: tuple[str, ...], expires: timedelta | None, name: str | None, project: Path) -> None:
    """Make a key for TENANT and print it, this once."""
    loaded = settings.load(project.resolve())
    owner = tenants.known(tenant, tenants.of(loaded, None))
    now = _now()
    key, record = keys.new(
        owner.name,
        now=now,
        scopes=[Scope(scope) for scope in dict.fromkeys(scopes)] or None,
        expires=None if expires is None else now + expires,
        name=_name(name),
    )
    with keys.change(loaded.keys_file) as records:
        records[record.id] = record
    _warn(record, owner)
    _show(key, record)


@keys_group.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
@project_option
def list_keys(*, as_json: bool, project: Path) -> None:
    """List the keys: everything but what they are."""
    loaded = settings.load(project.resolve())
    known, now = tenants.of(loaded, None), _now()
    rows = [keys.plain(one) | {"state": _state(one, known, now)} for one in keys.load(loaded.keys_file).values()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    columns = ("id", "tenant", "state", "scopes", "created", "expires", "name")
    table = [[name.upper() for name in columns], *([_cell(row[name]) for name in columns] for row in rows)]
    widths = [max(len(line[index]) for line in table) for index in range(len(columns))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@keys_group.command()
@click.argument("key_id", metavar="ID")
@project_option
def revoke(key_id: str, project: Path) -> None:
    """Refuse the key from now on; running servers follow within two seconds."""
    loaded = settings.load(project.resolve())
    with keys.change(loaded.keys_file) as records:
        record = _find(key_id, records)
        records[record.id] = keys.revoked(record, _now())
    click.echo(f"jubako: key {record.id} of tenant {record.tenant} is revoked", err=True)


@keys_group.command()
@click.argument("key_id", metavar="ID")
@click.option(
    "--grace",
    type=Duration(),
    metavar="DURATION",
    default=timedelta(),
    show_default="none: at once",
    help="How long the old key still works: 1h, 30m.",
)
@project_option
def rotate(key_id: str, grace: timedelta, project: Path) -> None:
    """Make a key like ID, print it, this once, and let the old one end."""
    loaded = settings.load(project.resolve())
    known, now = tenants.of(loaded, None), _now()
    with keys.change(loaded.keys_file) as records:
        old = _find(key_id, records)
        if (state := old.state(now)) != "live":
            raise StartupFault(f"key {old.id} is {state}; make a new one: jubako keys create {old.tenant}")
        owner = tenants.known(old.tenant, known)
        name = None if old.name == demo.NAME else old.name
        lifetime = None if old.expires is None else old.expires - old.created
        expires = None if lifetime is None else now + lifetime
        key, record = keys.new(old.tenant, now=now, scopes=old.scopes, expires=expires, name=name)
        records[record.id] = record
        records[old.id] = keys.expiring(old, now + grace)
    _warn(record, owner)
    _show(key, record)
    click.echo(f"jubako: the old key {old.id} works until {keys.text_of(records[old.id].expires)}", err=True)


def _name(name: str | None) -> str | None:
    if name is None:
        return None
    if not name.isprintable() or not 0 < len(name) <= keys.NAME_CHARACTERS or name == demo.NAME:
        raise click.UsageError(f"--name: 1 to {keys.NAME_CHARACTERS} printable characters, other than {demo.NAME!r}")
    return name


def _find(key_id: str, records: dict[str, KeyRecord]) -> KeyRecord:
    if key_id.startswith("jbk_"):
        # Not repeated: what was given may be a whole key.
        raise click.UsageError("give the id alone, the 12 characters after jbk_; no command line is a place for a key")
    if (record := records.get(key_id)) is None:
        near = documents.nearest(key_id, records)
        hint = f"did you mean {near}?" if near else "`jubako keys list` shows those there are"
        raise StartupFault(f"no key {key_id!r}; {hint}")
    return record


def _warn(record: KeyRecord, owner: Tenant) -> None:
    missing = sorted(scope.value for scope in set(record.scopes or ()) - owner.policy.scopes)
    if missing:
        click.echo(f"jubako: the policy of {owner.name} does not allow {', '.join(missing)}: no effect", err=True)
    if owner.suspended:
        click.echo(f"jubako: the tenant {owner.name} is suspended: the key does not work yet", err=True)


def _show(key: str, record: KeyRecord) -> None:
    click.echo(key)
    until = "" if record.expires is None else f", works until {keys.text_of(record.expires)}"
    click.echo(f"jubako: key {record.id} of tenant {record.tenant}{until}; it is not shown again", err=True)


def _state(record: KeyRecord, known: Tenants, now: datetime) -> str:
    tenant = known.get(record.tenant)
    if tenant is None:
        return "unknown tenant"
    state = record.state(now)
    return "suspended" if state == "live" and tenant.suspended else state


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ",".join(value) if isinstance(value, list) else str(value)


def _now() -> datetime:
    return datetime.now(UTC)
