"""Keys of a provider, a verifier that has them from a file, and what it says of a token."""

from __future__ import annotations

from typing import Any

import pytest

from jubako.errors import Unauthenticated
from jubako.gate import key_sets
from jubako.gate.tokens import TokenVerifier
from tests import identity_provider
from tests.identity_provider import KeyPair, key_set

EC = KeyPair("ec-1")
RSA = KeyPair("rsa-1", "RS256")
OTHER = KeyPair("other")


def verifier(*keys: dict[str, Any], **settings: Any) -> TokenVerifier:
    """A verifier that has these keys from a file."""
    keys = keys or (EC.jwk(), RSA.jwk())
    return TokenVerifier(
        identity_provider.settings("jwks.json", **settings), key_sets.parse(key_set(*keys), "jwks.json")
    )


async def accepted(one: TokenVerifier, token: str) -> bool:
    """Whether the token stands for somebody."""
    return (await one.verify(token)).tenant == "default"


async def refused(one: TokenVerifier, token: str) -> str:
    """The code with which the token is refused."""
    with pytest.raises(Unauthenticated) as raised:
        await one.verify(token)
    assert token not in raised.value.message or not token
    return raised.value.code
