"""What the tests of vetting share: the demo model's setting, and a checking process, shared or a test's own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from jubako.engine.vllm.vetting import Vetting
from jubako.engine.vllm.vetting_child import Setting


@pytest.fixture(scope="module")
def setting(model_folder: Path) -> Setting:
    """The demo model's, as the engine has it."""
    config = json.loads((model_folder / "config.json").read_text())
    return Setting(
        tokenizer=str(model_folder),
        tokenizer_mode="auto",
        tokenizer_revision=None,
        trust_remote_code=False,
        vocabulary_size=config["vocab_size"],
        model_type=config["model_type"],
        backend="auto",
        disable_any_whitespace=False,
        disable_additional_properties=False,
        processor_seconds=4,
        wall_seconds=40,
        memory_bytes=512 << 20,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(setting: Setting) -> AsyncIterator[Vetting]:
    """One process for all tests that leave it as they found it."""
    vetting = Vetting(setting)
    yield vetting
    await vetting.close()


@pytest_asyncio.fixture(loop_scope="module")
async def alone(setting: Setting) -> AsyncIterator[Vetting]:
    """A process of the test's own."""
    vetting = Vetting(setting)
    yield vetting
    await vetting.close()
