"""Tokens: which are accepted, every known attack, and which keys of a key set are used."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from jubako.errors import StartupFault, Unauthenticated
from jubako.gate import key_sets
from tests import identity_provider
from tests.identity_provider import KeyPair, key_set, part
from tests.token_verifiers import EC, OTHER, RSA, accepted, refused, verifier


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "ES512", "EdDSA"])
async def test_a_good_token_is_accepted(algorithm: str) -> None:
    """With every algorithm; its subject is told as a digest."""
    pair = RSA if algorithm == "RS256" else KeyPair("k", algorithm)
    claims = await verifier(pair.jwk()).verify(pair.token(sub="person@example"))
    assert claims.tenant == "default"
    assert claims.subject_id == "jwt:" + hashlib.sha256(b"person@example").hexdigest()[:12]
    assert claims.scopes is None


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"exp": int(time.time()) - 60}, "expired_token"),
        ({"exp": None}, "invalid_api_key"),
        ({"exp": "soon"}, "invalid_api_key"),
        ({"exp": 1e999}, "invalid_api_key"),
        ({"nbf": int(time.time()) + 600}, "invalid_api_key"),
        ({"iss": "https://elsewhere.example"}, "invalid_api_key"),
        ({"iss": None}, "invalid_api_key"),
        ({"aud": "another"}, "invalid_api_key"),
        ({"aud": ["another"]}, "invalid_api_key"),
        ({"aud": None}, "invalid_api_key"),
        ({"sub": None}, "invalid_api_key"),
        ({"sub": ""}, "invalid_api_key"),
        ({"tenant": None}, "invalid_api_key"),
        ({"tenant": ["default"]}, "invalid_api_key"),
    ],
)
async def test_every_claim_is_required_and_checked(claims: dict[str, Any], code: str) -> None:
    """Only a token that was good once is told that it expired."""
    assert await refused(verifier(), EC.token(**claims)) == code


async def test_leeway_covers_clocks_that_differ() -> None:
    """In both directions, and no further."""
    now = int(time.time())
    lenient = verifier(leeway_seconds=60)
    assert await accepted(lenient, EC.token(exp=now - 30, nbf=now + 30))
    assert await refused(lenient, EC.token(exp=now - 90)) == "expired_token"
    assert await accepted(verifier(), EC.token(aud=["another", identity_provider.AUDIENCE]))


@pytest.mark.parametrize(
    ("claim", "scopes"),
    [
        ("chat models", {"chat", "models"}),
        (["chat", "openid"], {"chat", "openid"}),
        ([1, None, "chat"], {"chat"}),
        ("", set()),
        (None, set()),
        (7, set()),
        ({"chat": True}, set()),
    ],
)
async def test_scopes_come_from_their_claim(claim: Any, scopes: set[str]) -> None:
    """No claim, no scopes."""
    assert (await verifier(scope_claim="scope").verify(EC.token(scope=claim))).scopes == frozenset(scopes)


def _hs256(secret: bytes, header: dict[str, Any]) -> str:
    """A token signed with a shared secret, by hand: PyJWT refuses to make one from a public key."""
    claims = jwt.decode(RSA.token(), options={"verify_signature": False})
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{part(hmac.digest(secret, signed.encode(), 'sha256'))}"


def _attacks() -> Iterator[tuple[str, str]]:
    good = EC.token()
    header, body, signature = good.split(".")
    pem = RSA.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for none in ("none", "None", "NONE", "nOnE", "", None):
        yield f"alg {none}", f"{part({'alg': none, 'kid': 'ec-1'})}.{body}."
        yield f"alg {none} with signature", f"{part({'alg': none, 'kid': 'ec-1'})}.{body}.{signature}"
    yield "public key as secret", _hs256(pem, {"alg": "HS256", "typ": "JWT", "kid": "rsa-1"})
    yield "public key as secret called RS256", _hs256(pem, {"alg": "RS256", "typ": "JWT", "kid": "rsa-1"})
    yield "another's key", OTHER.token(headers={"kid": "ec-1"})
    yield "another's key with itself in the header", OTHER.token(headers={"kid": "ec-1", "jwk": OTHER.jwk()})
    yield "another's key by URL", OTHER.token(headers={"jku": "http://127.0.0.1:1/jwks"})
    yield "another's key by certificate", OTHER.token(headers={"kid": "ec-1", "x5u": "http://127.0.0.1:1/"})
    yield "unknown kid", OTHER.token()
    yield "kid of another type", EC.token(headers={"kid": "rsa-1"})
    yield "kid is a path", OTHER.token(headers={"kid": "../../../dev/null"})
    yield "kid is a number", f"{part({'alg': 'ES256', 'kid': 1})}.{body}.{signature}"
    yield "kid is a list", f"{part({'alg': 'ES256', 'kid': ['ec-1']})}.{body}.{signature}"
    yield "kid is empty", EC.token(headers={"kid": ""})
    yield "critical header", EC.token(headers={"crit": ["exp"], "exp": 1})
    yield "unencoded body", f"{part({'alg': 'ES256', 'kid': 'ec-1', 'b64': False, 'crit': ['b64']})}.{body}.{signature}"
    yield "algorithm that is not configured", KeyPair("x", "ES384").token(headers={"kid": "ec-1"})
    yield "no signature", f"{header}.{body}."
    yield "zero signature", f"{header}.{body}.{part(bytes(64))}"
    yield "changed body", f"{header}.{part({'tenant': 'operations'})}.{signature}"
    yield "parts of two tokens", f"{header}.{EC.token(tenant='operations').split('.')[1]}.{signature}"
    yield "too few parts", f"{header}.{body}"
    yield "too many parts", f"{good}.{signature}"
    deep = b'{"a":' * 1000 + b"1" + b"}" * 1000
    yield "deep header", f"{part(deep)}.{body}.{signature}"
    yield "header is a list", f"{part([])}.{body}.{signature}"
    yield "body is a list", jwt.PyJWS().encode(b"[]", EC.private, "ES256", {"kid": "ec-1"})
    yield "body is no JSON", jwt.PyJWS().encode(b"\xff", EC.private, "ES256", {"kid": "ec-1"})
    yield "deep body", jwt.PyJWS().encode(b"[" * 5000, EC.private, "ES256", {"kid": "ec-1"})
    yield "huge", "a" * 10_000_000
    yield "empty", ""
    yield "surrogates", "\ud800.\ud800.\ud800"


@pytest.mark.parametrize(("name", "token"), [pytest.param(*one, id=one[0]) for one in _attacks()])
async def test_a_forged_token_is_refused(name: str, token: str) -> None:
    """Whatever it tries, with one and the same code."""
    assert await refused(verifier(algorithms=["RS256", "ES256"]), token) == "invalid_api_key", name


@given(st.text(max_size=200) | st.lists(st.binary(max_size=50).map(part), min_size=3, max_size=3).map(".".join))
def test_no_text_is_more_than_refused(text: str) -> None:
    """Never an error of another kind."""
    with pytest.raises(Unauthenticated):
        asyncio.run(verifier().verify(text))


async def test_a_token_without_kid_is_accepted_where_one_key_fits() -> None:
    """With two that fit nobody guesses, nor where two have the same id."""
    bare = EC.token(headers={"kid": None})
    assert await accepted(verifier(), bare)
    assert await refused(verifier(EC.jwk(), OTHER.jwk()), bare) == "invalid_api_key"
    assert await refused(verifier(EC.jwk(), OTHER.jwk(kid="ec-1")), EC.token()) == "invalid_api_key"


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": part(b"secret" * 10), "kid": "ec-1"},
        EC.jwk(use="enc"),
        EC.jwk(key_ops=["sign"]),
        EC.jwk(alg="ES384"),
        EC.jwk(alg=["ES256"]),
        EC.jwk(kid=7),
        EC.jwk(x="AAAA"),
        EC.jwk(crv="P-999"),
        EC.jwk(kty=["EC"]),
        {"kty": "RSA"},
        {},
    ],
)
async def test_a_key_that_does_not_fit_is_passed_over(entry: dict[str, Any]) -> None:
    """The rest of the set is used; a set of nothing else is a fault."""
    one = verifier(entry, RSA.jwk())
    assert await accepted(one, RSA.token())
    assert await refused(one, EC.token()) == "invalid_api_key"
    with pytest.raises(StartupFault, match="no key in it"):
        key_sets.parse(key_set(entry), "jwks.json")


def test_a_weak_key_is_passed_over() -> None:
    """1024 bits can be factored."""
    weak = KeyPair("weak", "RS256", bits=1024)
    with pytest.raises(StartupFault, match="2048"):
        key_sets.parse(key_set(weak.jwk()), "jwks.json")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b"[" * 100_000, b'{"keys": [1, null]}']
)
def test_what_is_no_key_set_is_a_fault(content: bytes) -> None:
    """With where it came from."""
    with pytest.raises(StartupFault, match=r"jwks\.json"):
        key_sets.parse(content, "jwks.json")


def test_the_key_set_of_the_tests_is_public() -> None:
    """No private part in it, or the tests would show nothing."""
    assert "d" not in json.loads(key_set(EC.jwk(), RSA.jwk()))["keys"][0]
