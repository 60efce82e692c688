"""The conversion from GGUF to safetensors: `python -m jubako.release.gguf FILE FOLDER DTYPE`.

The only module of the release that loads torch and transformers, and only as a process of its own. Prints one line
`stage …` on stdout before each of its four stages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CIRCUMSTANCES = frozenset({"is_local", "local_files_only", "name_or_path"})


def main(gguf: Path, into: Path, dtype: str) -> None:
    """Read `gguf`, dequantize it to `dtype`, and save model and tokenizer into the new folder `into`."""
    print("stage load libraries", flush=True)
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print("stage read and dequantize", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=dtype, quantization_config=GgufConfig(dequantize=True)
    )
    print("stage write safetensors", flush=True)
    model.save_pretrained(into)
    print("stage write tokenizer", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.save_pretrained(into)
    forget_circumstances(into / "tokenizer_config.json")


def forget_circumstances(path: Path) -> None:
    """Remove what transformers notes about how it was run: the same model must give the same bytes anywhere."""
    data = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in data.items() if key not in CIRCUMSTANCES}
    path.write_text(json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
