"""The demo model with its first layer alone: it says nothing sensible, and leaves the machine to what is around it."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path

_LATER = re.compile(r"model\.layers\.(?!0\.)\d+\.")


def write_one_layer(model: Path, folder: Path) -> Path:
    """A model folder below `folder`, made from the demo model's."""
    made = shutil.copytree(model, folder / "one-layer", ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((model / "config.json").read_text())
    config["num_hidden_layers"] = 1
    config.pop("layer_types", None)
    (made / "config.json").write_text(json.dumps(config))
    with (model / "model.safetensors").open("rb") as source, (made / "model.safetensors").open("wb") as target:
        (length,) = struct.unpack("<Q", source.read(8))
        header = json.loads(source.read(length))
        kept = {name: header[name] for name in header if name == "__metadata__" or not _LATER.match(name)}
        places, at = {}, 0
        for name, entry in kept.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                places[name] = begin
                kept[name] = entry | {"data_offsets": [at, at + end - begin]}
                at += end - begin
        text = json.dumps(kept).encode()
        target.write(struct.pack("<Q", len(text)) + text)
        for name, begin in places.items():
            first, last = kept[name]["data_offsets"]
            source.seek(8 + length + begin)
            target.write(source.read(last - first))
    return made
