"""JSON Web Key Sets: which keys of an identity provider may verify a token, and how the set is fetched.

Owns the reading of the set and the one HTTP request that brings it; both block, so callers use a thread. Every key is
tied to the algorithms that fit it: a public key can never be taken for a shared secret. Knows nothing of tokens.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import InvalidKeyError
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from jubako.errors import StartupFault

MAXIMUM_BYTES = 1024 * 1024
MAXIMUM_KEYS = 100
FETCH_SECONDS = 5.0
"""For the whole of a fetch: a token with a new key waits for it."""
RSA_BITS = range(2048, 16385)
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_PUBLIC = frozenset({"kty", "crv", "x", "y", "n", "e"})

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey


class KeySetUnavailable(Exception):
    """The set could not be fetched; the message says why."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """One public key, and what it may verify."""

    kid: str | None
    algorithms: frozenset[str]
    key: PublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of one provider at one time."""

    keys: tuple[VerificationKey, ...]

    def find(self, kid: str | None, algorithm: str) -> PublicKey | None:
        """The key that a token names. A token that names none gets one only if there is no choice."""
        fitting = [one for one in self.keys if algorithm in one.algorithms and (kid is None or one.kid == kid)]
        return fitting[0].key if len(fitting) == 1 else None


def read(path: Path) -> bytes:
    """The bytes of a set in a file; raises `StartupFault`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise StartupFault(f"{path}: the key set cannot be read: {error.strerror or error}") from None
    if len(content) > MAXIMUM_BYTES:
        raise StartupFault(f"{path}: more than {MAXIMUM_BYTES} bytes; a key set has at most those")
    return content


def parse(content: bytes, where: str) -> KeySet:
    """The usable keys of a set: keys for encryption, shared secrets, weak and unknown ones are passed over.

    Raises `StartupFault` if it is no key set or nothing of it is usable.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise StartupFault(f"{where}: not valid JSON; a key set is a JSON object with a list `keys`") from None
    entries = data.get("keys") if isinstance(data, dict) else None
    if not isinstance(entries, list) or len(entries) > MAXIMUM_KEYS:
        raise StartupFault(f"{where}: not a key set: a JSON object with a list `keys` of at most {MAXIMUM_KEYS}")
    keys = tuple(key for entry in entries if isinstance(entry, dict) and (key := _key(entry)) is not None)
    if not keys:
        raise StartupFault(
            f"{where}: no key in it can verify a signature (RSA of 2048 bits, P-256/384/521, Ed25519/448)"
        )
    return KeySet(keys)


def _key(entry: Mapping[str, Any]) -> VerificationKey | None:
    operations = entry.get("key_ops")
    if entry.get("use") not in (None, "sig") or (isinstance(operations, list) and "verify" not in operations):
        return None
    kid = entry.get("kid")
    key = _public_key(entry)
    if key is None or not isinstance(kid, str | None):
        return None
    algorithms = _algorithms(key)
    if (named := entry.get("alg")) is not None:
        algorithms &= {named} if isinstance(named, str) else frozenset()
    return VerificationKey(kid, algorithms, key) if algorithms else None


def _public_key(entry: Mapping[str, Any]) -> PublicKey | None:
    # Private parts, should a provider publish them, are not even looked at.
    public = {name: value for name, value in entry.items() if name in _PUBLIC}
    kinds: Mapping[object, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
    kty = entry.get("kty")
    if not isinstance(kty, str) or kty not in kinds:
        return None
    try:
        key = kinds[kty].from_jwk(public)
    except (InvalidKeyError, ValueError, KeyError, TypeError):
        return None
    return key if isinstance(key, PublicKey) else None


def _algorithms(key: PublicKey) -> frozenset[str]:
    if isinstance(key, RSAPublicKey):
        return frozenset({"RS256", "RS384", "RS512"}) if key.key_size in RSA_BITS else frozenset()
    if isinstance(key, EllipticCurvePublicKey):
        name = _CURVES.get(key.curve.name)
        return frozenset({name}) if name else frozenset()
    return frozenset({"EdDSA"})


def fetch(url: str, seconds: float = FETCH_SECONDS) -> bytes:
    """The bytes at the URL; raises `KeySetUnavailable`. Follows no redirect: the URL was chosen, another was not."""
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=seconds, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
    over = threading.Event()
    timer: threading.Timer | None = None
    try:
        connection.connect()
        # The socket itself: the connection forgets it as soon as it has read the reply's headers.
        timer = threading.Timer(seconds, _cut, [connection.sock, over])
        timer.daemon = True
        timer.start()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise KeySetUnavailable(f"{url}: HTTP status {response.status}")
        content = response.read(MAXIMUM_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = f"no answer within {seconds:g} s" if over.is_set() else f"{type(error).__name__}: {error}"
        raise KeySetUnavailable(f"{url}: {reason}") from None
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()
    if over.is_set():
        raise KeySetUnavailable(f"{url}: no answer within {seconds:g} s")
    if len(content) > MAXIMUM_BYTES:
        raise KeySetUnavailable(f"{url}: more than {MAXIMUM_BYTES} bytes")
    return content


def _cut(connected: socket.socket, over: threading.Event) -> None:
    """End a fetch that takes too long: the socket's own timeout begins again with every byte."""
    over.set()
    with suppress(OSError):  # it may just be ending by itself
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # not TLS's own, which pulls the state from under a reader
