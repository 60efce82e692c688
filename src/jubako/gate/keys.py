"""API keys: what one looks like, and the file that holds their digests.

Owns the file: a machine writes it, in one piece, under a lock, and whoever reads it sees the old or the new one. A key
is `jbk_<id>_<secret>`; the id is public, and of the whole only a SHA-256 is kept. Knows nothing of requests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from jubako import documents
from jubako.errors import StartupFault
from jubako.gate import writing
from jubako.vocabulary import Scope

MAXIMUM_BYTES = 16 * 1024 * 1024
ID_CHARACTERS = 12
NAME_CHARACTERS = 100
KEY_BYTES = 128
"""More than the text of any key."""
_ALPHABET = string.ascii_lowercase + string.digits
_KEY = re.compile(r"jbk_([a-z0-9]{12})_[A-Za-z0-9_-]{43}")
_TIME = "%Y-%m-%dT%H:%M:%SZ"
ADVICE = "Make a key with `jubako keys create TENANT`, or name another file in authentication.keys_file."


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of one key. Times are UTC, in whole seconds."""

    id: str
    tenant: str
    digest: str = field(repr=False)
    scopes: tuple[Scope, ...] | None
    """None: those of the tenant's policy; never more than those anyway."""
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    name: str | None = None

    def state(self, now: datetime) -> Literal["live", "expired", "revoked"]:
        """Whether the key works at `now`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "live"


def key_id(key: str) -> str | None:
    """The public id in the text of a key; None if it is no key of ours."""
    match = _KEY.fullmatch(key)
    return match[1] if match else None


def digest(key: str) -> str:
    """What is kept of a key's text. The secret has 256 bits: a slow hash would protect nothing more."""
    return hashlib.sha256(key.encode()).hexdigest()


def new(
    tenant: str,
    *,
    now: datetime,
    scopes: Sequence[Scope] | None = None,
    expires: datetime | None = None,
    name: str | None = None,
) -> tuple[str, KeyRecord]:
    """A new key's text, to be shown once, and what is kept of it."""
    public = "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARACTERS))
    key = f"jbk_{public}_{secrets.token_urlsafe(32)}"
    kept = None if scopes is None else tuple(scopes)
    return key, KeyRecord(public, tenant, digest(key), kept, _whole(now), expires and _whole(expires), None, name)


def revoked(record: KeyRecord, now: datetime) -> KeyRecord:
    """The same key, refused from now on."""
    return record if record.revoked is not None else replace(record, revoked=_whole(now))


def expiring(record: KeyRecord, at: datetime) -> KeyRecord:
    """The same key, refused from `at` on, or earlier if it was to end earlier."""
    return replace(record, expires=_whole(at if record.expires is None else min(at, record.expires)))


def _whole(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(microsecond=0)


# -- the file's form


def _time(text: str) -> str:
    try:
        datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        raise ValueError("must be a time like 2026-01-31T12:00:00Z") from None
    return text


_Time = Annotated[str, AfterValidator(_time)]


class _Key(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9]{12}$")]
    tenant: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=63)]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scopes: list[Scope] | None
    created: _Time
    expires: _Time | None
    revoked: _Time | None
    name: Annotated[str, Field(max_length=NAME_CHARACTERS)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    keys: list[_Key]


def load(path: Path) -> dict[str, KeyRecord]:
    """The records by id; raises `StartupFault` if the file is missing, malformed, or may be written by all."""
    return parse(read(path), path)


def read(path: Path) -> bytes:
    """The file's bytes; raises `StartupFault` if it cannot be read, is too large, or may be written by all."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise StartupFault(f"{path}: the keys file cannot be read: {error.strerror or error}. {ADVICE}") from None
    if len(content) > MAXIMUM_BYTES:
        raise StartupFault(f"{path}: more than {MAXIMUM_BYTES} bytes; a keys file has at most those")
    if mode & 0o002:
        # Readable by all is how Kubernetes mounts secrets by default; writable by all is how keys get replaced.
        raise StartupFault(f"{path}: any user may write it (mode {mode & 0o777:04o}). Run chmod 600 on it.")
    return content


def parse(content: bytes, path: Path) -> dict[str, KeyRecord]:
    """The records in the file's bytes. Faults quote nothing of the content: somebody may have pasted a key into it."""
    try:
        text = content.decode()
        data = json.loads(text, object_pairs_hook=_without_duplicates)
    except UnicodeDecodeError as error:
        raise StartupFault(f"{path}: not UTF-8 at byte {error.start}; {_MEND}") from None
    except json.JSONDecodeError as error:
        raise StartupFault(f"{path}:{error.lineno}: not valid JSON: {error.msg}; {_MEND}") from None
    except (ValueError, RecursionError):
        raise StartupFault(
            f"{path}: not valid JSON: a name is given twice, or it is nested too deep; {_MEND}"
        ) from None
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise StartupFault("\n".join(documents.faults(_with_lines(text, path), error, _File, quote=False))) from None
    records = {key.id: _record(key) for key in file.keys}
    if len(records) < len(file.keys):
        seen: set[str] = set()
        twice = next(key.id for key in file.keys if key.id in seen or seen.add(key.id))  # type: ignore[func-returns-value]
        raise StartupFault(f"{path}: the key id {twice} is there twice; {_MEND}")
    return records


_MEND = "restore the file from a copy, or move it away and make new keys"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _with_lines(text: str, path: Path) -> documents.Document:
    """JSON is YAML in all that matters here: slower to read, but with lines."""
    try:
        return documents.parse(text, path)
    except StartupFault:
        return documents.Document({}, path)


def _record(key: _Key) -> KeyRecord:
    return KeyRecord(
        id=key.id,
        tenant=key.tenant,
        digest=key.digest,
        scopes=None if key.scopes is None else tuple(key.scopes),
        created=_moment(key.created),
        expires=None if key.expires is None else _moment(key.expires),
        revoked=None if key.revoked is None else _moment(key.revoked),
        name=key.name,
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def text_of(time: datetime | None) -> str | None:
    """A time as the file has it."""
    return None if time is None else time.strftime(_TIME)


def plain(record: KeyRecord) -> dict[str, Any]:
    """The record as plain data, without its digest."""
    return {
        "id": record.id,
        "tenant": record.tenant,
        "scopes": None if record.scopes is None else [scope.value for scope in record.scopes],
        "created": text_of(record.created),
        "expires": text_of(record.expires),
        "revoked": text_of(record.revoked),
        "name": record.name,
    }


def dump(records: Mapping[str, KeyRecord]) -> bytes:
    """The file's bytes: one key a line, so that a difference between two versions can be read."""
    lines = [json.dumps(plain(record) | {"digest": record.digest}, ensure_ascii=True) for record in records.values()]
    return ('{"version": 1, "keys": [\n' + ",\n".join(lines) + "\n]}\n").encode()


@contextmanager
def change(path: Path) -> Iterator[dict[str, KeyRecord]]:
    """The records, to be changed in the block; what they are at its end is written, unless it raises.

    One process at a time. A missing file is an empty one; a malformed one is a fault, and stays as it is.
    """
    with writing.lock(path):
        records = load(path) if path.exists() else {}
        before = dict(records)
        yield records
        if records != before or not path.exists():
            writing.replace(path, dump(records))
