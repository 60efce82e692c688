"""Who asks: API keys and tokens, and the files that say which of them are good.

Owns the state that authentication reads, and its replacement, in one assignment, when a file changes. Knows nothing of
HTTP beyond the value of one header. Absent, unknown, expired and suspended credentials are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from jubako import documents
from jubako.errors import Forbidden, StartupFault, Unauthenticated
from jubako.gate import key_sets, keys, tenants
from jubako.gate.key_sets import KeySet
from jubako.gate.keys import KeyRecord
from jubako.gate.tenants import Tenant, Tenants
from jubako.gate.tokens import TokenVerifier
from jubako.gate.watched import WatchedFile
from jubako.sections import AuthenticationSettings
from jubako.telemetry import logs
from jubako.vocabulary import Limits, Principal, Scope

logger = logging.getLogger(__name__)

_NO_DIGEST = bytes(32)
"""Compared with where there is no key of that id: no SHA-256 that anybody can find."""
_Content = TypeVar("_Content")


@dataclass(frozen=True, slots=True)
class _Key:
    """One key as a request needs it."""

    digest: bytes
    revoked: bool
    expires_at: float
    """Seconds since the epoch; infinite if it does not expire."""
    suspended: bool
    principal: Principal


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that a change replaces at once."""

    tenants: Tenants
    keys: Mapping[str, _Key]


@dataclass(frozen=True, slots=True)
class _Files:
    """What the state is read from."""

    tenants: WatchedFile[Tenants]
    keys: WatchedFile[dict[str, KeyRecord]]
    key_set: WatchedFile[KeySet] | None


class Authenticator:
    """Checks `Authorization: Bearer <key or token>`; made by `load`, kept current by `watch`."""

    def __init__(
        self,
        files: _Files,
        records: tuple[Tenants, Mapping[str, KeyRecord]],
        tokens: TokenVerifier | None,
        *,
        reload_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._tenants, self._records = records
        self._tokens = tokens
        self._reload_seconds = reload_seconds
        self._clock = clock
        self._state = _state(self._tenants, self._records)

    @classmethod
    def load(
        cls,
        settings: AuthenticationSettings,
        root: Path,
        limits: Limits,
        deadline_seconds: float,
        served: frozenset[str] | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> Authenticator:
        """Read every file once; raises `StartupFault` with the faults of all of them.

        Blocks, without a network: a key set's URL is asked when the first token comes, or by `watch`, so that a
        provider that is down keeps nobody with an API key from being served.
        """
        files = _files(settings, root, limits, deadline_seconds, served)
        faults: list[str] = []
        read_tenants = _first(files.tenants, faults)
        read_keys = _first(files.keys, faults)
        key_set = None if files.key_set is None else _first(files.key_set, faults)
        if faults or read_tenants is None or read_keys is None:
            raise StartupFault("\n".join(faults))
        tokens = None
        if settings.jwt is not None:
            fetch = None if files.key_set else partial(key_sets.fetch, settings.jwt.jwks)
            tokens = TokenVerifier(settings.jwt, key_set, fetch=fetch)
        return cls(files, (read_tenants, read_keys), tokens, reload_seconds=settings.reload_seconds, clock=clock)

    async def authenticate(self, authorization: str | None) -> Principal:
        """The caller's principal.

        Raises `Unauthenticated`, `Forbidden` for a suspended tenant, and `Unavailable` for a token while there are no
        keys to verify it with.
        """
        if authorization is None:
            raise Unauthenticated(
                "No API key was given. Send it as 'Authorization: Bearer <key>'.", code="missing_api_key"
            )
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer":
            raise _invalid()
        if self._tokens is None or credential.startswith("jbk_"):
            return self._by_key(credential)
        return await self._by_token(self._tokens, credential)

    def _by_key(self, credential: str) -> Principal:
        public = keys.key_id(credential)
        given = hashlib.sha256((credential if public else "").encode()).digest()
        key = self._state.keys.get(public or "")
        # Compared in any case: an id that exists must not be told by the time the answer takes.
        same = hmac.compare_digest(given, _NO_DIGEST if key is None else key.digest)
        if key is None or not same:
            raise _invalid()
        if key.revoked:
            raise Unauthenticated("The API key was revoked.")
        if key.expires_at <= self._clock():
            raise Unauthenticated("The API key has expired.")
        if key.suspended:
            raise _suspended()
        return key.principal

    async def _by_token(self, tokens: TokenVerifier, credential: str) -> Principal:
        claims = await tokens.verify(credential)
        tenant = self._state.tenants.get(claims.tenant)
        if tenant is None:
            raise Unauthenticated("The token's tenant is not known here.")
        if tenant.suspended:
            raise _suspended()
        scopes = tenant.policy.scopes
        if claims.scopes is not None:
            scopes = frozenset(scope for scope in scopes if scope.value in claims.scopes)
        return Principal(tenant.name, claims.subject_id, scopes, tenant.policy)

    async def watch(self) -> None:
        """Look at the files every `reload_seconds` and put good changes in force; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        # A thread of its own: a revoked key must not wait behind whatever else uses the loop's threads.
        executor = ThreadPoolExecutor(1, thread_name_prefix="jubako-authentication")
        try:
            while True:
                if self._tokens is not None:
                    self._tokens.refresh_if_due()
                await asyncio.sleep(self._reload_seconds)
                try:
                    await loop.run_in_executor(executor, self._look)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
                    logger.error("the look at keys and tenants failed: %s", logs.place(error))
        finally:
            executor.shutdown(wait=False)
            if self._tokens is not None:
                await self._tokens.close()

    def _look(self) -> None:
        # Each stands for itself: a broken tenants file must not keep a revoked key alive.
        changed_tenants, changed_keys = _changed(self._files.tenants), _changed(self._files.keys)
        if changed_tenants is not None or changed_keys is not None:
            self._tenants = self._tenants if changed_tenants is None else changed_tenants
            self._records = self._records if changed_keys is None else changed_keys
            self._state = _state(self._tenants, self._records)
        key_set = None if self._files.key_set is None else _changed(self._files.key_set)
        if key_set is not None and self._tokens is not None:
            self._tokens.replace_keys(key_set)


def require(principal: Principal, scope: Scope) -> None:
    """Raise `Forbidden` unless the caller has the scope."""
    if scope not in principal.scopes:
        raise Forbidden(f"The credential does not have the scope '{scope.value}'.", code="scope_missing")


def _files(
    settings: AuthenticationSettings,
    root: Path,
    limits: Limits,
    deadline_seconds: float,
    served: frozenset[str] | None,
) -> _Files:
    def parse_tenants(content: bytes, path: Path) -> Tenants:
        document = documents.parse(content.decode(), path)
        return tenants.parse(document, limits=limits, deadline_seconds=deadline_seconds, served=served)

    key_set = None
    if settings.jwt is not None and "://" not in settings.jwt.jwks:
        key_set = WatchedFile(
            _under(root, Path(settings.jwt.jwks)),
            "token keys",
            key_sets.read,
            lambda content, path: key_sets.parse(content, str(path)),
            settle=False,
        )
    return _Files(
        tenants=WatchedFile(
            _under(root, settings.tenants_file),
            "tenants",
            lambda path: documents.text(path).encode(),
            parse_tenants,
            settle=True,
        ),
        # No half of these can be read as a whole: a change is in force at the next look.
        keys=WatchedFile(_under(root, settings.keys_file), "keys", keys.read, keys.parse, settle=False),
        key_set=key_set,
    )


def _under(root: Path, path: Path) -> Path:
    return root / path.expanduser()


def _first(file: WatchedFile[_Content], faults: list[str]) -> _Content | None:
    try:
        return file.load()
    except StartupFault as fault:
        faults.append(str(fault))
        return None


def _changed(file: WatchedFile[_Content]) -> _Content | None:
    """The file's new content. What a file has told of a change it tells only once: another's fault must not lose it."""
    try:
        return file.changed()
    except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
        logger.error("the look at %s failed: %s", file.path, logs.place(error))
        return None


def _state(known: Tenants, records: Mapping[str, KeyRecord]) -> _State:
    found = {
        record.id: _key(record, tenant)
        for record in records.values()
        if (tenant := known.get(record.tenant)) is not None
    }
    if len(found) < len(records):
        # Not a fault: a tenant that is taken out of the file must be out at once, its keys with it.
        logger.warning("%d keys are of tenants that are not in the tenants file: refused", len(records) - len(found))
    return _State(known, found)


def _key(record: KeyRecord, tenant: Tenant) -> _Key:
    scopes = tenant.policy.scopes
    if record.scopes is not None:
        scopes &= frozenset(record.scopes)
    return _Key(
        digest=bytes.fromhex(record.digest),
        revoked=record.revoked is not None,
        expires_at=math.inf if record.expires is None else record.expires.timestamp(),
        suspended=tenant.suspended,
        principal=Principal(tenant.name, record.id, scopes, tenant.policy),
    )


def _invalid() -> Unauthenticated:
    return Unauthenticated("The API key is not valid.")


def _suspended() -> Forbidden:
    return Forbidden("The tenant is suspended.", code="tenant_suspended")
