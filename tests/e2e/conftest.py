"""What the tests with the official client share: the client, sync and async, and plain HTTP beside it.

Tests take the client as `Any`: its overloads do not know what comes out of a dictionary of options.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from jubako.release import manifest

if TYPE_CHECKING:
    from tests.project import Served

TIMEOUT_SECONDS = 300.0


def _options(server: Served) -> dict[str, Any]:
    return {"base_url": f"{server.url}/v1", "api_key": server.key, "max_retries": 0, "timeout": TIMEOUT_SECONDS}


@pytest.fixture
def client(jubako_server: Served) -> Iterator[openai.OpenAI]:
    """The official client; it does not retry, so that every refusal is seen."""
    with openai.OpenAI(**_options(jubako_server)) as one:
        yield one


@pytest.fixture
async def async_client(jubako_server: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client for asyncio."""
    async with openai.AsyncOpenAI(**_options(jubako_server)) as one:
        yield one


@pytest.fixture
def http(jubako_server: Served) -> Iterator[httpx.Client]:
    """HTTP with the key and nothing else, for what the official client does not do."""
    headers = {"authorization": f"Bearer {jubako_server.key}"}
    with httpx.Client(base_url=jubako_server.url, headers=headers, timeout=TIMEOUT_SECONDS) as one:
        yield one


@pytest.fixture
def fingerprint(jubako_server: Served) -> str:
    """What `system_fingerprint` must be: the release's digest, shortened."""
    configuration = jubako_server.log_file.parent / "configuration"
    loaded = manifest.load(configuration / "releases" / "adapted" / "1" / "manifest.yaml")
    return f"jubako-{loaded.digest[:16]}"
