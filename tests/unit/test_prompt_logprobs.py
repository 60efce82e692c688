"""What would end an engine with adapters is refused before the engine has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.caller import call_of
from tests.scripted_core import ScriptedCore, front_end

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me."}], "prompt_logprobs": 1}
TEXT: dict[str, Any] = {"prompt": "Once", "echo": True, "logprobs": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(model_folder: Path) -> AsyncIterator[tuple[Any, ScriptedCore]]:
    """A front end whose release has an adapter."""
    engine, core = await front_end(model_folder)
    engine._release = replace(engine._release, adapters={"adapter": "nowhere"})
    yield engine, core
    await engine.close(0)


@pytest.mark.parametrize(("route", "body"), [(Route.CHAT, CHAT), (Route.COMPLETIONS, TEXT)], ids=["chat", "completion"])
async def test_prompts_are_not_scored_beside_adapters(
    front: tuple[Any, ScriptedCore], route: Route, body: dict[str, Any]
) -> None:
    """The engine's process would end, and with it every request of everybody."""
    engine, core = front
    call = call_of(route, {"max_tokens": 4, **body})
    with pytest.raises(InvalidRequest, match="where adapters are served"):
        await engine.answer(call)
    assert not core.requests
