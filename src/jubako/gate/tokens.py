"""Tokens of an identity provider (JWT): who one stands for, by PyJWT and the provider's public keys.

Owns which tokens are accepted and how long fetched keys may be used. What a token says about where its key is (`jku`,
`jwk`, `x5u`) is never looked at; its `kid` only chooses among keys we have. Knows nothing of tenants.

Keys from a URL are fetched again after `cache_seconds`, beside the requests; an unknown `kid` fetches at once, but at
most once in `COOL_DOWN_SECONDS`, and one fetch serves all that wait. While the provider is down its last keys stay in
use for `STALE_FACTOR` times `cache_seconds`; after that tokens get 503, never a yes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jwt

from jubako.errors import StartupFault, Unauthenticated, Unavailable
from jubako.gate import key_sets
from jubako.gate.key_sets import KeySet, KeySetUnavailable, PublicKey
from jubako.sections import JwtSettings

logger = logging.getLogger(__name__)

MAXIMUM_CHARACTERS = 8192
COOL_DOWN_SECONDS = 10.0
STALE_FACTOR = 12
_WAIT_SECONDS = key_sets.FETCH_SECONDS + 1


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says."""

    subject_id: str
    """Public id of the subject, safe to log."""
    tenant: str
    scopes: frozenset[str] | None
    """None: the token is not asked for scopes. Words that are no scopes of ours may be among them."""


class TokenVerifier:
    """Verifies tokens against one provider's keys, which are replaced as they change."""

    def __init__(
        self,
        settings: JwtSettings,
        keys: KeySet | None = None,
        *,
        fetch: Callable[[], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._fetch = fetch
        self._clock = clock
        self._fetched_at = -math.inf
        self._attempted_at = -math.inf
        self._refresh: asyncio.Task[None] | None = None
        self._one_thread = threading.Lock()
        self._told: str | None = None

    def replace_keys(self, keys: KeySet) -> None:
        """Use these from now on."""
        self._keys = keys

    async def verify(self, token: str) -> Claims:
        """What the token says; raises `Unauthenticated`, or `Unavailable` if there are no keys to verify it with."""
        if len(token) > MAXIMUM_CHARACTERS:
            raise Unauthenticated(f"The token is longer than {MAXIMUM_CHARACTERS} characters.")
        algorithm, kid = self._header(token)
        key = await self._key(kid, algorithm)
        return self._claims(self._decode(token, key, algorithm))

    def refresh_if_due(self) -> None:
        """Begin to fetch the keys if they are older than `cache_seconds`; to be called now and then."""
        if self._fetch is not None and self._age() > self._settings.cache_seconds:
            self._begin_refresh()

    async def close(self) -> None:
        """Stop fetching."""
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait([self._refresh])

    def _header(self, token: str) -> tuple[str, str | None]:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise _invalid() from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.algorithms or not isinstance(kid, str | None):
            raise _invalid()
        return str(algorithm), kid

    async def _key(self, kid: str | None, algorithm: str) -> PublicKey:
        self.refresh_if_due()
        key = self._find(kid, algorithm)
        if key is None and (refresh := self._begin_refresh()) is not None:
            # Others wait for it as well: one of them going away must not end it.
            await asyncio.shield(refresh)
            key = self._find(kid, algorithm)
        if key is None and self._usable() is None:
            raise Unavailable("Tokens cannot be verified at the moment: the identity provider's keys are missing.")
        if key is None:
            raise _invalid()
        return key

    def _find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        keys = self._usable()
        return None if keys is None else keys.find(kid, algorithm)

    def _usable(self) -> KeySet | None:
        if self._fetch is not None and self._age() > self._settings.cache_seconds * STALE_FACTOR:
            return None
        return self._keys

    def _age(self) -> float:
        return self._clock() - self._fetched_at

    def _begin_refresh(self) -> asyncio.Task[None] | None:
        """The fetch under way, or a new one unless the last was just now."""
        if self._fetch is None:
            return None
        if self._refresh is not None and not self._refresh.done():
            return self._refresh
        now = self._clock()
        if now - self._attempted_at < COOL_DOWN_SECONDS:
            return None
        self._attempted_at = now
        self._refresh = asyncio.create_task(self._fetch_keys(self._fetch, now), name="key-set-fetch")
        return self._refresh

    async def _fetch_keys(self, fetch: Callable[[], bytes], now: float) -> None:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                keys = await asyncio.to_thread(self._blocking, fetch)
        except (KeySetUnavailable, StartupFault, TimeoutError) as error:
            self._tell(str(error) or f"no answer within {_WAIT_SECONDS:g} s")
            return
        self._keys, self._fetched_at = keys, now
        if self._told is not None:
            self._told = None
            logger.info("the identity provider's keys were fetched again: %d keys", len(keys.keys))

    def _blocking(self, fetch: Callable[[], bytes]) -> KeySet:
        """In a thread; never in two, should a name server or a handshake keep the first."""
        if not self._one_thread.acquire(blocking=False):
            raise KeySetUnavailable("the fetch before has not ended")
        try:
            return key_sets.parse(fetch(), self._settings.jwks)
        finally:
            self._one_thread.release()

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            logger.error("the identity provider's keys could not be fetched, the last ones stay in use: %s", reason)

    def _decode(self, token: str, key: PublicKey, algorithm: str) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key=key,
                algorithms=[algorithm],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway_seconds,
                options={"require": ["iss", "aud", "exp", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired.", code="expired_token") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise _invalid() from None
        return claims

    def _claims(self, claims: dict[str, Any]) -> Claims:
        subject, tenant = claims["sub"], claims.get(self._settings.tenant_claim)
        if not subject or not isinstance(subject, str) or not isinstance(tenant, str):
            raise _invalid()
        subject_id = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        name = self._settings.scope_claim
        return Claims(f"jwt:{subject_id}", tenant, None if name is None else _scopes(claims.get(name)))


def _scopes(value: Any) -> frozenset[str]:
    """Space-separated or a list; anything else, and nothing, is no scope at all."""
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return frozenset(word for word in words if isinstance(word, str))


def _invalid() -> Unauthenticated:
    # One message for all: which check failed helps whoever forges tokens more than whoever has a good one.
    return Unauthenticated("The token is not valid here: check its issuer, audience, times, tenant, key and algorithm.")
