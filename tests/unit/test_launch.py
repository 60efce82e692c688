"""Engine arguments, as vLLM's own parser reads them."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest

from jubako.errors import StartupFault
from jubako.vocabulary import ServedRelease

pytestmark = pytest.mark.engine

PLAIN: dict[str, Any] = {
    "digest": "0123456789abcdef" * 4,
    "model_folder": "/m",
    "aliases": ("one", "two"),
    "dtype": "float32",
}


def parsed(options: dict[str, Any], **fields: Any) -> Any:
    """vLLM's arguments for a release with these fields."""
    from jubako.engine.vllm.launch import parse

    return parse(ServedRelease(**PLAIN | fields), options, 30)


def test_the_release_decides_what_is_served() -> None:
    """Names, files, dtype and fingerprint are its own; the operator's options stand beside them."""
    arguments = parsed({"max_num_seqs": 3})
    assert (arguments.model, arguments.served_model_name) == ("/m", ["one", "two"])
    assert (arguments.fingerprint_value, arguments.dtype) == ("jubako-0123456789abcdef", "float32")
    assert arguments.max_num_seqs == 3
    assert not arguments.enable_lora


@pytest.mark.parametrize(("given", "slots"), [({}, 3), ({"max_loras": 1}, 3), ({"max_loras": 8}, 8)])
def test_one_adapter_slot_stays_free(given: dict[str, Any], slots: int) -> None:
    """On CPUs vLLM would answer a request for the base model with the adapter of the last slot."""
    arguments = parsed(given, adapters={"a": "/a", "b": "/b"})
    assert arguments.enable_lora
    assert arguments.max_loras == slots
    assert [module.name for module in arguments.lora_modules] == ["a", "b"]


def test_a_value_that_vllm_does_not_take_is_a_fault() -> None:
    """In a sentence of vLLM's, without its usage and without an exit."""
    with pytest.raises(StartupFault, match=r"max-num-seqs|max_num_seqs"):
        parsed({"max_num_seqs": "many"})


@pytest.mark.parametrize(("method", "is_used"), [("spawn", True), ("fork", False)])
def test_what_was_started_ahead_takes_the_place_of_a_spawned_process_only(
    monkeypatch: pytest.MonkeyPatch, method: str, *, is_used: bool
) -> None:
    """vLLM's choice of how processes are made stands, and is its own again afterwards."""
    from vllm.v1.engine import utils

    from jubako.engine.vllm import ahead, launch

    own = multiprocessing.get_context(method)
    monkeypatch.setattr(utils, "get_mp_context", lambda: own)
    choose = utils.get_mp_context
    monkeypatch.setattr(ahead, "_IMPORTS", ("json",))
    interpreter = ahead.Interpreter()
    with launch._started_ahead(interpreter):
        assert isinstance(utils.get_mp_context(), ahead.Context) is is_used
        assert is_used or utils.get_mp_context() is own
    assert utils.get_mp_context is choose
    assert os.waitpid(interpreter.pid, 0)[0] == interpreter.pid, "one that nothing was made of ends"
    with launch._started_ahead(None):
        assert utils.get_mp_context() is own
