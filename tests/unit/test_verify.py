"""Verification: every kind of difference is found, and all are told in one message."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jubako.errors import StartupFault
from jubako.release import digests
from jubako.release.manifest import Manifest
from jubako.release.verify import verify
from tests.unit.conftest import model_files

LayOut = Callable[[Path], Path]


def _fault(manifest: Manifest, root: Path) -> str:
    with pytest.raises(StartupFault) as raised:
        verify(manifest, root)
    return str(raised.value)


def test_the_pinned_files_pass(tmp_path: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """The very files pass, with BentoML's description beside them, and progress counts every byte."""
    root = lay_out(tmp_path)
    (root / "model.yaml").write_text("name: tiny\n")
    done: list[int] = []
    verify(manifest, root, done.append)
    assert sum(done) == manifest.size_bytes


def test_every_structural_fault_is_told_at_once(tmp_path: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """Missing, longer, additional, linked and piped files are all in one message, with expected and found."""
    root = lay_out(tmp_path / "root")
    (root / "model/tokenizer.json").unlink()
    (root / "model/config.json").write_bytes(b"{}")
    (root / "model/extra.bin").write_bytes(b"xx")
    (root / "other").mkdir()
    (root / "model/model.safetensors").unlink()
    os.mkfifo(root / "model/model.safetensors")
    outside = tmp_path / "outside"
    outside.write_bytes(b'{"peft_type": "LORA", "r": 8}')
    (root / "adapters/tiny-lora/adapter_config.json").unlink()
    (root / "adapters/tiny-lora/adapter_config.json").symlink_to(outside)
    message = _fault(manifest, root)
    size = len(model_files()["config.json"])
    for line in [
        "model/tokenizer.json: expected 18 bytes, found no file",
        f"model/config.json: expected {size} bytes, found 2",
        "model/extra.bin: expected nothing, found a file of 2 bytes",
        "other: expected nothing, found a folder",
        "model/model.safetensors: expected a file, found a named pipe",
        "adapters/tiny-lora/adapter_config.json: expected a file, found a symbolic link",
    ]:
        assert f"  {line}" in message.splitlines()
    assert message.splitlines()[-1].startswith("Do not serve these files.")
    assert "jubako release fetch tiny/1" in message


def test_every_altered_file_is_told_at_once(tmp_path: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """One changed byte in each of two files of the right size gives two lines with both digests."""
    root = lay_out(tmp_path)
    for name in ["model/model.safetensors", "adapters/tiny-lora/adapter_model.safetensors"]:
        content = bytearray((root / name).read_bytes())
        content[-1] ^= 1
        (root / name).write_bytes(content)
    message = _fault(manifest, root)
    assert message.count("expected sha256") == 2
    assert message.count(", found ") == 2


def test_a_linked_folder_is_refused(tmp_path: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """A folder that is a link out of the root is a fault even if the files behind it are right."""
    root = lay_out(tmp_path / "root")
    (root / "model").rename(tmp_path / "elsewhere")
    (root / "model").symlink_to(tmp_path / "elsewhere")
    assert "model: expected a folder, found a symbolic link" in _fault(manifest, root)


def test_an_absent_root_is_told(tmp_path: Path, manifest: Manifest) -> None:
    """A folder that is not there is one fault, not one for each file."""
    assert "expected a folder, found nothing" in _fault(manifest, tmp_path / "none")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_are_told(tmp_path: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """A file whose mode forbids reading is a fault."""
    root = lay_out(tmp_path)
    (root / "model/config.json").chmod(0)
    assert "cannot be read" in _fault(manifest, root)


def test_a_read_error_is_told(
    tmp_path: Path, manifest: Manifest, lay_out: LayOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the operating system while opening becomes a line with its reason."""
    real = os.open

    def failing(path: str, *rest: Any, **named: Any) -> int:
        if str(path).endswith("config.json"):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **named)

    root = lay_out(tmp_path)
    monkeypatch.setattr(os, "open", failing)
    assert "found a file that cannot be read: Permission denied" in _fault(manifest, root)


def test_a_file_that_changes_meanwhile_is_told(tmp_path: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """A file that grows while it is hashed is a fault, not a traceback."""
    root = lay_out(tmp_path)
    weights = root / "model/model.safetensors"

    def grow(_: int) -> None:
        with weights.open("ab") as file:
            file.write(b"x")

    with pytest.raises(StartupFault, match="changed while it was read"):
        verify(manifest, root, grow)


def test_a_pipe_put_in_place_after_the_look_does_not_hang(tmp_path: Path) -> None:
    """Hashing opens without waiting, so that a pipe is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(digests.Unreadable, match="not a regular file"):
        digests.of_file(tmp_path / "pipe")


def test_many_faults_are_cut_short(tmp_path: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """The message stays readable however many files are wrong."""
    root = lay_out(tmp_path)
    for number in range(80):
        (root / f"model/extra-{number}").touch()
    assert "… and 30 more" in _fault(manifest, root)
