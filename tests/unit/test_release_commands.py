"""The command line of the release: what is printed where, and with which exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.conftest import model_files, write


def _run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BENTOML_HOME": str(home), "JUBAKO_CONFIGURATION": str(home / "configuration")}
    return subprocess.run(
        [sys.executable, "-m", "jubako.cli", *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_help_is_quick_and_loads_nothing_heavy(tmp_path: Path) -> None:
    """`jubako --help` takes well under a second of a processor and imports neither BentoML nor pydantic."""
    before = os.times()
    assert _run(tmp_path, "--help").returncode == 0
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1
    heavy = "import sys, jubako.cli, jubako.release.commands; print({'bentoml', 'torch', 'vllm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_release_from_a_folder_lives_its_life(tmp_path: Path) -> None:
    """Created, shown, verified, altered, refused: each with its exit status and without a traceback."""
    files = write(tmp_path / "files", model_files())
    create = [
        "release", "create", "tiny", "1", "--from-folder", str(files), "--alias", "tiny", "--licence", "MIT",
        "--licence-reason", "test", "--dtype", "float32", "--engine-version", "0.32.0",
    ]  # fmt: skip
    home = tmp_path / "home"
    done = _run(home, *create)
    assert done.returncode == 0, done.stderr
    again = _run(home, *create)
    assert (again.returncode, "a change is a new version" in again.stderr) == (1, True)
    digest = _run(home, "release", "digest").stdout.strip()
    assert digest in done.stdout
    assert f"# release digest: {digest}" in _run(home, "release", "show", "tiny/1").stdout
    assert _run(home, "release", "verify").returncode == 0
    assert "already stored" in _run(home, "release", "fetch", "tiny/1").stdout
    stored = home / "models" / "tiny" / digest[:16] / "model" / "config.json"
    stored.write_bytes(stored.read_bytes().replace(b"llama", b"LLAMA"))
    altered = _run(home, "release", "verify", "tiny/1")
    assert altered.returncode == 1
    assert "model/config.json: expected sha256" in altered.stderr
    assert "Traceback" not in altered.stderr


def test_wrong_usage_exits_with_two(tmp_path: Path) -> None:
    """Options that do not fit together are usage, not faults."""
    base = ["release", "create", "tiny", "1", "--alias", "a", "--licence", "MIT", "--licence-reason", "x"]
    assert _run(tmp_path, *base).returncode == 2
    assert _run(tmp_path, *base, "--from-package", "a==1").returncode == 2
    assert _run(tmp_path, "release", "nonsense").returncode == 2
