"""Who asks: API keys. Knows nothing of HTTP beyond the value of one header.

One key from a mounted file stands for one tenant. The key itself is not kept: its SHA-256 is, and comparison takes the
same time whatever was sent.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from jubako.errors import StartupFault, Unauthenticated
from jubako.vocabulary import Principal

MINIMUM_CHARACTERS = 16
MAXIMUM_BYTES = 1024


class KeyAuthenticator:
    """Checks `Authorization: Bearer <key>` against one key."""

    def __init__(self, key: str) -> None:
        digest = hashlib.sha256(key.encode()).digest()
        self._digest = digest
        # Public name of the key, safe to log: a digest of the digest.
        self._principal = Principal(tenant="default", key_id=hashlib.sha256(digest).hexdigest()[:12])

    def authenticate(self, authorization: str | None) -> Principal:
        """The caller's principal, or `Unauthenticated`."""
        if authorization is None:
            raise Unauthenticated(
                "No API key was given. Send it as 'Authorization: Bearer <key>'.", code="missing_api_key"
            )
        scheme, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._digest):
            raise Unauthenticated("The API key is not valid.")
        return self._principal


def read_key(path: Path) -> str:
    """The key in `path`; raises `StartupFault` when it is missing, malformed, short, or writable by all."""
    advice = "Put one API key into it, readable by the server alone, or set JUBAKO__AUTHENTICATION__KEY_FILE."
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise StartupFault(f"API key file {path}: {error.strerror or error}. {advice}") from None
    key = content.decode("utf-8", "replace").strip()
    if len(content) > MAXIMUM_BYTES or "\n" in key or not key.isprintable() or not key.isascii():
        raise StartupFault(f"API key file {path}: expected one line of printable ASCII. {advice}")
    if len(key) < MINIMUM_CHARACTERS:
        raise StartupFault(f"API key file {path}: the key is shorter than {MINIMUM_CHARACTERS} characters. {advice}")
    if mode & 0o002:
        # Readable by all is how Kubernetes mounts secrets by default; writable by all is how keys get replaced.
        raise StartupFault(
            f"API key file {path}: any user may write it (mode {mode & 0o777:04o}). Run chmod 600 on it."
        )
    return key


def ensure_key(path: Path) -> bool:
    """Create `path` with a new random key, mode 0600, unless it exists; returns whether it was created."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.parent.is_dir():
            return False
        raise StartupFault(f"API key file {path}: cannot create it: {error.strerror}.") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"jbk_{secrets.token_urlsafe(32)}\n")
    return True
