"""Makes a tiny random LoRA adapter for a Llama model: the same bytes each time, strong enough to change the answers.

It knows the adapter format (adapter_config.json and adapter_model.safetensors) and nothing of torch or peft.
Run it as `python -m tests.tiny_lora MODEL_FOLDER ADAPTER_FOLDER`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4
ALPHA = 32
SEED = 20
STRENGTH = 0.05


def write_adapter(model_folder: Path, adapter_folder: Path, *, seed: int = SEED) -> Path:
    """Write the adapter for the model in `model_folder` and return its folder."""
    config = json.loads((model_folder / "config.json").read_text())
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    widths = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    random = np.random.Generator(np.random.PCG64(seed))
    tensors: dict[str, np.ndarray] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = _noise(random, RANK, hidden)
            tensors[f"{prefix}.lora_B.weight"] = _noise(random, width, RANK)
    adapter_folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, adapter_folder / "adapter_model.safetensors", metadata={"format": "pt"})
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(widths),
    }
    (adapter_folder / "adapter_config.json").write_text(json.dumps(description, indent=2, sort_keys=True) + "\n")
    return adapter_folder


def _noise(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return (random.standard_normal((rows, columns)) * STRENGTH).astype(np.float32)


def main() -> None:
    """Write an adapter from the command line."""
    parser = argparse.ArgumentParser(description="Write a tiny random LoRA adapter.")
    parser.add_argument("model_folder", type=Path)
    parser.add_argument("adapter_folder", type=Path)
    arguments = parser.parse_args()
    write_adapter(arguments.model_folder, arguments.adapter_folder)


if __name__ == "__main__":
    main()
