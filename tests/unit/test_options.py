"""Engine options: vLLM's names, read without vLLM, and those that are not the operator's to set."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from jubako.engine import options
from jubako.errors import StartupFault


def faults(given: dict[str, object], environment: dict[str, object] | None = None) -> list[str]:
    """The lines of the fault that checking gives."""
    with pytest.raises(StartupFault) as raised:
        options.check(given, environment or {})
    return str(raised.value).splitlines()


def test_what_exists_is_taken() -> None:
    """Names and variables of vLLM's own."""
    options.check({"max_model_len": 2048, "enforce_eager": True}, {"VLLM_CPU_KVCACHE_SPACE": 1, "OMP_NUM_THREADS": 2})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("max_model_length", "max_model_len"), ("max-num-seqs", "max_num_seqs"), ("enforce_eagre", "enforce_eager")],
)
def test_an_unknown_option_is_told_with_the_nearest(name: str, nearest: str) -> None:
    """A misspelt option would otherwise be one that is not set."""
    assert faults({name: 1}) == [f"engine option {name}: vLLM has no such option; did you mean {nearest}?"]


def test_an_unknown_variable_is_told_with_the_nearest() -> None:
    """vLLM itself would ignore it."""
    (found,) = faults({}, {"VLLM_CPU_KVCACHE_SPAC": 1})
    assert found.endswith("did you mean VLLM_CPU_KVCACHE_SPACE?")


@pytest.mark.parametrize("name", sorted(options.OWNED))
def test_owned_options_are_refused_with_the_reason(name: str) -> None:
    """Even if the value is the one that Jubako sets."""
    assert faults({name: None}) == [f"engine option {name}: set by Jubako ({options.OWNED[name]}); remove it"]


@pytest.mark.parametrize("name", sorted(options.REFUSED_ENVIRONMENT))
def test_dangerous_variables_are_refused_with_the_reason(name: str) -> None:
    """Each would open what the boundary closes."""
    (found,) = faults({}, {name: 0})
    assert options.REFUSED_ENVIRONMENT[name] in found


def test_all_faults_are_told_at_once() -> None:
    """Options and variables alike."""
    assert len(faults({"model": "x", "nonsense_option": 1}, {"VLLM_SERVER_DEV_MODE": 1, "NOT_VLLM": 1})) == 4


def test_an_option_cannot_hide_in_a_list() -> None:
    """An item that begins with a hyphen would be an option to vLLM's command line."""
    (found,) = faults({"allowed_origins": ["x", "--trust-remote-code"]})
    assert "allowed_origins" in found or "no such option" in found


@pytest.mark.parametrize("backend", ["outlines", "lm-format-enforcer", "xgramar", 1, None])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_backend_that_grammars_cannot_be_tried_with_is_refused(backend: object, *, as_text: bool) -> None:
    """At the start, with the option, its value and those that are accepted: not each request that brings a grammar."""
    value: object = {"backend": backend}
    (found,) = faults({"structured_outputs_config": json.dumps(value) if as_text else value})
    assert found.startswith(f"engine option structured_outputs_config: backend {backend!r}: ")
    assert found.endswith("accepted are auto, xgrammar, guidance")


@pytest.mark.parametrize("backend", options.GRAMMAR_BACKENDS)
def test_a_backend_that_grammars_can_be_tried_with_is_taken(backend: str) -> None:
    """And so is leaving it out."""
    options.check({"structured_outputs_config": {"backend": backend}}, {})
    options.check({"structured_outputs_config": {"disable_any_whitespace": True}}, {})
    options.check({"structured_outputs_config": None}, {})


def test_code_does_not_come_in_by_the_way_of_structured_outputs() -> None:
    """The plugin is refused wherever vLLM would take it."""
    (found,) = faults({"structured_outputs_config": {"reasoning_parser_plugin": "x.py"}})
    assert options.OWNED["reasoning_parser_plugin"] in found
    (found,) = faults({"structured_outputs_config": "xgrammar"})
    assert "must be a mapping" in found


def test_options_become_arguments() -> None:
    """Booleans are flags, lists repeat, mappings are JSON, null is left out, and a value may begin with a hyphen."""
    given = {
        "a_b": 1,
        "on": True,
        "off": False,
        "many": [1, "x", {"y": 2}],
        "map": {"k": [1]},
        "none": None,
        "s": "-x y",
    }
    assert options.arguments(given) == [
        "--a-b=1",
        "--on",
        "--no-off",
        "--many",
        "1",
        "x",
        '{"y": 2}',
        '--map={"k": [1]}',
        "--s=-x y",
    ]


@pytest.mark.parametrize(("value", "text"), [(True, "1"), (False, "0"), (4, "4"), (0.5, "0.5"), ("x", "x")])
def test_variables_become_text(value: str | float, text: str) -> None:
    """Booleans as vLLM reads them."""
    assert options.environment_text(value) == text


def test_names_are_read_without_importing_vllm() -> None:
    """The command line must not take seconds to find a typing error."""
    code = (
        "import sys; from jubako.engine import options; options.known_options(); options.known_environment();"
        "assert not {'vllm', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.engine
def test_the_names_are_those_of_vllm() -> None:
    """What is read from its source equals what it has when imported, and what is owned or refused exists."""
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import BaseFrontendArgs

    classes = (AsyncEngineArgs, BaseFrontendArgs)
    real = {one.name for owner in classes for one in dataclasses.fields(owner) if not one.name.startswith("_")}
    assert options.known_options() == real
    assert options.known_environment() >= set(envs.environment_variables) & {
        name for name in envs.environment_variables if name.startswith("VLLM_")
    }
    assert set(options.REFUSED_ENVIRONMENT) <= options.known_environment()
    assert sorted(set(options.OWNED) - real) == []


@pytest.mark.parametrize(
    "name", ["VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_DEBUG_LOG_API_SERVER_RESPONSE", "VLLM_LOGGING_CONFIG_PATH"]
)
def test_a_refused_variable_is_refused_wherever_it_is_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The engine inherits the process's environment, not only the profile's."""
    monkeypatch.setenv(name, "1")
    with pytest.raises(StartupFault, match=name):
        options.check({}, {})


@pytest.mark.parametrize("name", ["logits_processors", "worker_cls", "speculative_config", "hf_overrides"])
def test_options_that_bring_unpinned_code_or_files_are_refused(name: str) -> None:
    """What answers is what the release names."""
    with pytest.raises(StartupFault, match="set by Jubako"):
        options.check({name: "x"}, {})
