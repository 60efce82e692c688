"""The life of a provider's keys: fetched once, renewed, kept while it is down, never fetched where a caller says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from jubako.errors import Unavailable
from jubako.gate import key_sets, tokens
from jubako.gate.tokens import TokenVerifier
from tests import identity_provider
from tests.identity_provider import Provider, key_set
from tests.token_verifiers import EC, OTHER, accepted, refused, verifier


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A real HTTP server that publishes one key."""
    with identity_provider.serving(EC.jwk()) as one:
        yield one


@pytest.fixture
def clock() -> Clock:
    """The verifier's."""
    return Clock()


@pytest.fixture
async def online(provider: Provider, clock: Clock) -> AsyncIterator[TokenVerifier]:
    """A verifier that asks the provider."""
    fetch = partial(key_sets.fetch, provider.url, 0.5)
    one = TokenVerifier(identity_provider.settings(provider.url, cache_seconds=100), fetch=fetch, clock=clock)
    yield one
    await one.close()


async def until_asked(provider: Provider, times: int) -> None:
    """Wait until the provider was asked so often."""
    async with asyncio.timeout(90):
        while provider.asked < times:
            await asyncio.sleep(0.01)


async def settled(one: TokenVerifier) -> None:
    """Wait for the fetch under way."""
    if one._refresh is not None:
        await asyncio.wait([one._refresh])


async def test_keys_are_fetched_once_and_kept(online: TokenVerifier, provider: Provider) -> None:
    """Many first tokens together ask once."""
    await asyncio.gather(*(online.verify(EC.token()) for _ in range(20)))
    await online.verify(EC.token())
    assert provider.asked == 1


async def test_a_new_key_is_used_at_once(online: TokenVerifier, provider: Provider, clock: Clock) -> None:
    """And the one it replaced no longer."""
    await online.verify(EC.token())
    provider.content = key_set(OTHER.jwk())
    clock.now += tokens.COOL_DOWN_SECONDS
    assert await accepted(online, OTHER.token())
    assert provider.asked == 2
    assert await refused(online, EC.token()) == "invalid_api_key"


async def test_unknown_kids_cannot_make_us_flood_the_provider(
    online: TokenVerifier, provider: Provider, clock: Clock
) -> None:
    """One fetch a cool-down, however many are tried."""
    await online.verify(EC.token())
    for cool_down in range(3):
        clock.now += tokens.COOL_DOWN_SECONDS
        await asyncio.gather(*(refused(online, OTHER.token(headers={"kid": str(kid)})) for kid in range(50)))
        assert provider.asked == 2 + cool_down


async def test_old_keys_serve_while_new_ones_are_fetched(
    online: TokenVerifier, provider: Provider, clock: Clock
) -> None:
    """Nobody waits for a fetch that only renews."""
    await online.verify(EC.token())
    clock.now += 101
    provider.hold.clear()
    assert await accepted(online, EC.token())
    await until_asked(provider, 2)
    assert await accepted(online, EC.token())
    provider.hold.set()


async def test_old_keys_serve_for_a_while_when_the_provider_is_down(
    online: TokenVerifier, provider: Provider, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Then tokens get 503, as nobody can tell whether they are good; once it is back they are accepted again."""
    await online.verify(EC.token())
    provider.status = 500
    for _ in range(tokens.STALE_FACTOR - 1):
        clock.now += 100
        assert await accepted(online, EC.token())
        await settled(online)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    clock.now += 101
    with pytest.raises(Unavailable) as raised:
        await online.verify(EC.token())
    assert raised.value.code == "not_ready"
    provider.status = 200
    clock.now += tokens.COOL_DOWN_SECONDS
    assert await accepted(online, EC.token())


@pytest.mark.parametrize("trouble", ["status", "redirect", "garbage", "size", "silence", "drip"])
async def test_what_is_no_answer_is_no_key(online: TokenVerifier, provider: Provider, trouble: str) -> None:
    """Fail closed, in bounded time: an error, another place, another form, too much, nothing, or too slowly."""
    if trouble == "status":
        provider.status = 404
    elif trouble == "redirect":
        provider.status, provider.headers = 302, {"Location": provider.url}
    elif trouble == "garbage":
        provider.content = b"<html>"
    elif trouble == "size":
        provider.content = key_set(EC.jwk()) + b" " * key_sets.MAXIMUM_BYTES
    elif trouble == "silence":
        provider.hold.clear()
    else:
        provider.drip = True
    async with asyncio.timeout(90):
        with pytest.raises(Unavailable):
            await online.verify(EC.token())
    assert provider.asked == 1


async def test_a_caller_who_leaves_does_not_end_the_fetch_of_others(online: TokenVerifier, provider: Provider) -> None:
    """It is shared."""
    provider.hold.clear()
    leaving, staying = (asyncio.create_task(online.verify(EC.token())) for _ in range(2))
    await until_asked(provider, 1)
    leaving.cancel()
    provider.hold.set()
    assert (await staying).tenant == "default"


async def test_headers_that_name_another_place_are_never_followed(provider: Provider) -> None:
    """`jku` and `x5u` are the caller's words."""
    one = verifier()
    for name in ("jku", "x5u"):
        await refused(one, OTHER.token(headers={name: provider.url}))
        assert await accepted(one, EC.token(headers={name: provider.url, "jwk": OTHER.jwk()}))
    assert provider.asked == 0
