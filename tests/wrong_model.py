"""The demo model with one layer altered, pinned as a release of its own: all is right but the answers."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import yaml

from tests.project import DEMO, Project

LAYER = "model.layers.12.mlp.down_proj.weight"


def wrong_release(project: Project, model_folder: Path, work: Path) -> None:
    """Make the release in the project's store and have the project serve it."""
    altered = shutil.copytree(model_folder, work / "altered")
    alter(altered / "model.safetensors")
    demo = yaml.safe_load(
        (project.folder / "configuration" / "releases" / DEMO / "1" / "manifest.yaml").read_text(encoding="utf-8")
    )
    smoke = work / "smoke.yaml"
    smoke.write_text(yaml.safe_dump(demo["smoke"]))
    options = ["--from-folder", str(altered), "--alias", DEMO, "--licence", "Apache-2.0", "--licence-reason", "a test"]
    created = project.jubako("release", "create", "wrong", "1", *options, "--smoke", str(smoke))
    assert created.returncode == 0, created.stderr
    project.environment |= {"JUBAKO__RELEASE__NAME": "wrong", "JUBAKO__RELEASE__VERSION": "'1'"}


def alter(path: Path) -> None:
    """Flip the sign of one layer's weights in place: a bfloat16 has its sign in the highest bit of its second byte."""
    with path.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        start, end = header[LAYER]["data_offsets"]
        file.seek(8 + length + start)
        weights = bytearray(file.read(end - start))
        weights[1::2] = bytes(byte ^ 0x80 for byte in weights[1::2])
        file.seek(8 + length + start)
        file.write(weights)
