"""A model so small that a server in front of it is the limit: the demo model's first layer, and of that a corner.

It has the demo model's tokenizer and form, and says nothing sensible. Without the corner, most of a step is the
multiplication by a vocabulary of fifty thousand, as on no GPU.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from tests.one_layer import write_one_layer

HEAD = 64
WIDTH = {"hidden_size": HEAD, "intermediate_size": 2 * HEAD, "num_attention_heads": 1, "num_key_value_heads": 1}
_WIDE = ("gate_proj", "up_proj")


def write_narrow(model: Path, folder: Path) -> Path:
    """A model folder below `folder`, made from the demo model's."""
    made = write_one_layer(model, folder)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | WIDTH | {"head_dim": HEAD}))
    weights = made / "model.safetensors"
    with weights.open("rb") as source:
        (length,) = struct.unpack("<Q", source.read(8))
        header = json.loads(source.read(length))
        body = source.read()
    kept: dict[str, object] = {}
    parts: list[bytes] = []
    at = 0
    for name, entry in header.items():
        if name == "__metadata__":
            kept[name] = entry
            continue
        begin, end = entry["data_offsets"]
        corner = _corner(name, np.frombuffer(body[begin:end], dtype=np.uint16).reshape(entry["shape"]))
        parts.append(corner.tobytes())
        kept[name] = entry | {"shape": list(corner.shape), "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(kept).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return made


def _corner(
    name: str, weight: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """The first rows and columns: all rows of the vocabulary's, twice as many where the layer is wider."""
    if weight.ndim == 1:
        return weight[:HEAD].copy()
    rows = (
        weight.shape[0] if "embed" in name or "lm_head" in name else 2 * HEAD if name.split(".")[-2] in _WIDE else HEAD
    )
    columns = 2 * HEAD if "down_proj" in name else HEAD
    return weight[:rows, :columns].copy()
