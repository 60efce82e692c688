"""An identity provider for tests: key pairs, tokens, and a real HTTP server that publishes its key set."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from jubako.sections import JwtSettings

ISSUER = "https://id.example"
AUDIENCE = "jubako"
_CURVES: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@dataclass
class KeyPair:
    """A private key and its public JWK."""

    kid: str
    algorithm: str = "ES256"
    bits: int = 2048
    private: Any = field(init=False)

    def __post_init__(self) -> None:
        """Make the key; elliptic curves take no time, RSA a tenth of a second."""
        if self.algorithm.startswith("RS"):
            self.private = rsa.generate_private_key(65537, self.bits)
        elif self.algorithm.startswith("ES"):
            self.private = ec.generate_private_key(_CURVES[self.algorithm])
        else:
            self.private = ed25519.Ed25519PrivateKey.generate()

    def jwk(self, **changes: Any) -> dict[str, Any]:
        """The public key as it is published."""
        kind: Any = {"RS": RSAAlgorithm, "ES": ECAlgorithm, "Ed": OKPAlgorithm}[self.algorithm[:2]]
        plain: dict[str, Any] = kind.to_jwk(self.private.public_key(), as_dict=True)
        return plain | {"kid": self.kid, "use": "sig"} | changes

    def token(self, *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token signed with it; a claim or header of None is left out."""
        now = int(time.time())
        body = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 300, "sub": "someone", "tenant": "default"} | claims
        head = {"kid": self.kid} | (headers or {})
        return jwt.encode(
            {name: value for name, value in body.items() if value is not None},
            self.private,
            algorithm=self.algorithm,
            headers={name: value for name, value in head.items() if value is not None},
        )


def settings(jwks: str, **changes: Any) -> JwtSettings:
    """The settings that accept this provider's tokens."""
    return JwtSettings.model_validate(
        {
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "jwks": jwks,
            "tenant_claim": "tenant",
            "scope_claim": None,
            "algorithms": ["RS256", "ES256", "ES384", "ES512", "EdDSA"],
            "leeway_seconds": 0,
            "cache_seconds": 300,
        }
        | changes
    )


def key_set(*keys: dict[str, Any]) -> bytes:
    """The bytes of a key set."""
    return json.dumps({"keys": list(keys)}).encode()


def part(data: Any) -> str:
    """One part of a token."""
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@dataclass
class Provider:
    """What the server answers, and how often it was asked."""

    url: str
    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    hold: threading.Event = field(default_factory=threading.Event)
    """Answers wait for it; set at the start."""
    drip: bool = False
    """Send a byte now and then, for ever."""


@contextmanager
def serving(*keys: dict[str, Any]) -> Iterator[Provider]:
    """A provider on loopback that publishes `keys`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked += 1
            provider.hold.wait(30)
            self.send_response(provider.status)
            for name, value in provider.headers.items():
                self.send_header(name, value)
            self.end_headers()
            while provider.drip:
                try:
                    self.wfile.write(b" ")
                except OSError:
                    return
                time.sleep(0.01)
            self.wfile.write(provider.content)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - as the standard library has it
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = Provider(f"http://127.0.0.1:{server.server_address[1]}/jwks", key_set(*keys))
    provider.hold.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.hold.set()
        provider.drip = False
        server.shutdown()
        server.server_close()
        thread.join()
