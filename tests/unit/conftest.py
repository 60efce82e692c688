"""What the tests of the release share: a tiny model on disk, its manifest, a store of its own."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jubako.release.manifest import Manifest


def safetensors(fill: int = 7, count: int = 64) -> bytes:
    """A valid safetensors file of one float32 tensor, made by hand."""
    body = bytes([fill]) * (4 * count)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [count], "data_offsets": [0, len(body)]}}).encode()
    return struct.pack("<Q", len(header)) + header + body


def model_files() -> dict[str, bytes]:
    """The files of a model too small to mean anything."""
    return {
        "config.json": b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
        "model.safetensors": safetensors(),
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
    }


def adapter_files() -> dict[str, bytes]:
    """The files of an adapter."""
    return {"adapter_config.json": b'{"peft_type": "LORA", "r": 8}', "adapter_model.safetensors": safetensors(3)}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Write `files` below `folder`."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pins(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """The manifest's entries for `files`."""
    return [
        {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(files.items())
    ]


def fields(**changes: Any) -> dict[str, Any]:
    """The fields of a whole manifest, with `changes`."""
    return {
        "schema_version": 1,
        "name": "tiny",
        "version": "1",
        "aliases": ["tiny-model", "tiny"],
        "source": {"kind": "folder", "note": "made by a test"},
        "files": pins(model_files()),
        "architecture": "LlamaForCausalLM",
        "tokenizer_sha256": hashlib.sha256(model_files()["tokenizer.json"]).hexdigest(),
        "dtype": "float32",
        "licence": {"spdx": "Apache-2.0", "decision": "approved", "reason": "made by a test"},
        "engine": {"version": "0.32.0", "options": {}},
        "adapters": [
            {
                "alias": "tiny-lora",
                "source": {"kind": "folder", "note": "made by a test"},
                "files": pins(adapter_files()),
                "rank": 8,
            }
        ],
        "smoke": [{"name": "hello", "prompt": "hello", "max_tokens": 4, "expected": " world"}],
    } | changes


@pytest.fixture
def manifest() -> Manifest:
    """The manifest of the tiny model and its adapter."""
    return Manifest.model_validate(fields())


@pytest.fixture
def lay_out() -> Callable[[Path], Path]:
    """Writes the release's files below a folder, as they are stored."""

    def write_release(root: Path) -> Path:
        write(root / "model", model_files())
        write(root / "adapters" / "tiny-lora", adapter_files())
        return root

    return write_release


@pytest.fixture
def store_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty BentoML home of this test alone."""
    from bentoml._internal.configuration.containers import BentoMLContainer
    from bentoml._internal.models import ModelStore

    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    monkeypatch.setenv("BENTOML_HOME", str(home))
    monkeypatch.setenv("BENTOML_DO_NOT_TRACK", "True")
    BentoMLContainer.model_store_dir.set(str(home / "models"))
    BentoMLContainer.model_store.set(ModelStore(home / "models"))
    yield home
    BentoMLContainer.model_store_dir.reset()
    BentoMLContainer.model_store.reset()
