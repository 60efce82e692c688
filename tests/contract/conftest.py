"""The two servers of the parity contract, one after the other: there is never more than one engine at a time.

The second is Jubako from the fixture `jubako_server` (any object with `url` and `key`), unless the environment says
`JUBAKO_PARITY_URL` (a Jubako that runs already, its key in `JUBAKO_PARITY_KEY`) or `JUBAKO_PARITY_SELF` (vLLM's own
server once more: then nothing at all may differ).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.collect import collect
from tests.contract.differences import DECLARED
from tests.contract.parity import Parity
from tests.contract.vllm_server import vllm_server
from tests.tiny_lora import write_adapter


@pytest.fixture(scope="module")
def parity(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parity:
    """Ask both servers everything."""
    folder = tmp_path_factory.mktemp("parity")
    model = _model_folder(request)
    adapter = write_adapter(model, folder / "adapter")
    with vllm_server(model, adapter, folder / "vllm.log") as url:
        theirs = collect(url)
    if os.environ.get("JUBAKO_PARITY_SELF"):
        with vllm_server(model, adapter, folder / "vllm-again.log") as url:
            return Parity(theirs, collect(url), ())
    if running := os.environ.get("JUBAKO_PARITY_URL"):
        return Parity(theirs, collect(running, os.environ.get("JUBAKO_PARITY_KEY", "")), DECLARED)
    server = request.getfixturevalue("jubako_server")
    return Parity(theirs, collect(server.url, server.key), DECLARED)


def _model_folder(request: pytest.FixtureRequest) -> Path:
    """The folder of the demo model's safetensors, the same that Jubako serves."""
    if named := os.environ.get("JUBAKO_PARITY_MODEL"):
        return Path(named)
    folder: Path = request.getfixturevalue("model_folder")
    return folder
