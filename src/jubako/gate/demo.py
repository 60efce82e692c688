"""The first start: keys for whoever runs the demo, made without being asked and never twice.

Owns two plain key files of the project's folder, and the rule when they are made or mended. It touches a keys file only
if that lies in the project's folder and was made here, and takes nothing out of it: a plain file that was moved away
may still be in use.

The plain files are written first, the keys file last: whatever step a kill hits, the next start finds no keys file and
begins again, or finds a plain file that fits nothing and makes that one key anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from jubako.errors import StartupFault
from jubako.gate import keys, writing
from jubako.gate.keys import KeyRecord
from jubako.gate.tenants import Tenants

NAME = "made by jubako serve"
"""Marks the records of this module; `jubako keys` gives the name to no other."""
TENANTS: Mapping[str, str] = {"default": "dev.key", "operations": "operator.key"}
"""Tenant to the name of the file with its plain key."""


def demo_key_file(root: Path) -> Path:
    """Where the first start puts the plain key of the tenant `default`; it need not exist."""
    return root / ".jubako" / TENANTS["default"]


def operator_key_file(root: Path) -> Path:
    """Where the first start puts the plain key of the tenant `operations`; it need not exist."""
    return root / ".jubako" / TENANTS["operations"]


def ensure(root: Path, keys_file: Path, tenants: Tenants, now: datetime) -> list[Path]:
    """Make or mend the demo's keys where that is ours to do; the plain files that were written.

    Raises `StartupFault` if there is no keys file and none may be made, or if it is malformed.
    """
    own = Path(os.path.realpath(keys_file)).is_relative_to(root)
    if not keys_file.exists():
        if not own:
            raise StartupFault(f"{keys_file}: no such keys file, and it is not in the project's folder. {keys.ADVICE}")
        if "default" not in tenants:
            raise StartupFault(
                f"{keys_file}: no such keys file, and no tenant `default` to make one for. {keys.ADVICE}"
            )
    elif not own or not _amiss(root, keys.load(keys_file), now):
        return []  # without asking for the lock: a folder that cannot be written is no hindrance
    with writing.lock(keys_file):
        records = keys.load(keys_file) if keys_file.exists() else None
        amiss = [name for name in TENANTS if name in tenants] if records is None else _amiss(root, records, now)
        records = records or {}
        written = []
        for tenant in amiss:
            key, record = keys.new(tenant, now=now, name=NAME)
            records[record.id] = record
            path = root / ".jubako" / TENANTS[tenant]
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            writing.replace(path, f"{key}\n".encode())
            written.append(path)
        if written:
            writing.replace(keys_file, keys.dump(records))
        return written


def _amiss(root: Path, records: Mapping[str, KeyRecord], now: datetime) -> list[str]:
    """The tenants whose demo key lives but is not in its plain file. One that was revoked stays revoked."""
    found = []
    for tenant, name in TENANTS.items():
        made = _made_here(records, tenant, now)
        if made and not any(one.digest == _digest_in(root / ".jubako" / name) for one in made):
            found.append(tenant)
    return found


def _made_here(records: Mapping[str, KeyRecord], tenant: str, now: datetime) -> list[KeyRecord]:
    return [one for one in records.values() if (one.name, one.tenant, one.state(now)) == (NAME, tenant, "live")]


def _digest_in(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return keys.digest(file.read(keys.KEY_BYTES + 1).decode("ascii", "replace").strip())
    except OSError:
        return ""
