"""The Bento: built offline from a clean clone, served from another folder without network and without the clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from jubako.release import manifest as manifests
from tests.project import DEMO, READY_SECONDS, REPOSITORY, Project, Served, free_port, until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
]
ROOT = os.geteuid() == 0
OFFLINE = [sys.executable, str(REPOSITORY / "tests" / "loopback_only.py")] if ROOT else []
"""A network namespace of one's own needs root; without it these tests prove all but the offline."""


@dataclass(frozen=True)
class Bento:
    """A built Bento, the home it is in, and the model it wants."""

    tag: str
    folder: Path
    model: Path
    home: Path

    def elsewhere(self, folder: Path) -> Project:
        """A folder with nothing but keys, to serve from."""
        kept = folder / ".jubako"
        kept.mkdir(parents=True)
        environment = {
            "BENTOML_HOME": str(self.home),
            "JUBAKO__AUTHENTICATION__KEYS_FILE": str(kept / "keys.json"),
            "JUBAKO__BUDGETS__SQLITE_FILE": str(kept / "budgets.sqlite"),
        }
        made = Project(REPOSITORY, environment).jubako("keys", "create", "default")
        assert made.returncode == 0, made.stderr
        (kept / "dev.key").write_text(made.stdout)
        return Project(folder, environment)

    def command(self, port: int) -> list[str]:
        """Serve it as anybody would."""
        return [sys.executable, "-m", "bentoml", "serve", self.tag, "--host", "127.0.0.1", "--port", str(port)]


@pytest.fixture(scope="module")
def bento(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Bento]:
    """Built from a clone that is gone afterwards."""
    base = tmp_path_factory.mktemp("bento")
    clone, home = base / "clone", base / "home"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
    stored = model_folder.parent
    model = home / "models" / stored.parent.name / stored.name
    shutil.copytree(stored, model)
    built = subprocess.run(
        [*OFFLINE, sys.executable, "-m", "bentoml", "build", "--output", "tag"],
        cwd=clone,
        env=os.environ | {"BENTOML_HOME": str(home), "PYTHONPATH": str(clone / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    tag = built.stdout.strip().rpartition("__tag__:")[2]
    shutil.rmtree(clone)
    yield Bento(tag, home / "bentos" / tag.replace(":", "/"), model, home)
    shutil.rmtree(base)


def test_labels_carry_the_release_digest(bento: Bento) -> None:
    """Who has the Bento knows which files it serves."""
    described = yaml.safe_load((bento.folder / "bento.yaml").read_text())
    manifest = manifests.load(bento.folder / "src" / "configuration" / "releases" / DEMO / "1" / "manifest.yaml")
    assert described["labels"]["release-digest"] == manifest.digest
    assert manifest.tag in [model["tag"] for service in described["services"] for model in service["models"]]


def test_no_weights_tests_or_keys_are_packed(bento: Bento) -> None:
    """The Bento holds the code and the configuration; the model is a reference."""
    packed = {path.relative_to(bento.folder / "src").parts[0] for path in (bento.folder / "src").rglob("*")}
    assert {"service.py", "configuration", "jubako", "requirements"} <= packed
    assert not packed & {"tests", ".jubako", ".venv", ".git"}
    assert not list(bento.folder.rglob("*.safetensors"))


@pytest.mark.skipif(not ROOT, reason="a network namespace of one's own needs root")
def test_it_serves_elsewhere_with_loopback_only(bento: Bento, tmp_path: Path) -> None:
    """No checkout, no network: it verifies, becomes ready and answers."""
    port = free_port()
    with bento.elsewhere(tmp_path).serving(bento.command(port), prefix=OFFLINE, port=port) as served:
        until(lambda: _inside(served, "/readyz").returncode == 0, "ready", READY_SECONDS)
        reply = json.loads(_inside(served, "/v1/completions").stdout)
        assert reply["choices"][0]["text"].startswith(" 6, 7")
        warden = next(p.cmdline() for p in served.processes() if "warden" in " ".join(p.cmdline()))
        assert str(bento.folder) in " ".join(warden), "the package that runs is not the Bento's own"
        served.terminate()
        assert served.wait_end() == 0
        served.assert_nothing_left()


ASK = """
import json, sys, urllib.request
url, key = sys.argv[1:]
body = {"model": "smollm2", "prompt": "1, 2, 3, 4, 5,", "max_tokens": 8, "temperature": 0}
headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
data = json.dumps(body).encode() if "completions" in url else None
print(urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30).read().decode())
"""


def _inside(served: Served, path: str) -> subprocess.CompletedProcess[str]:
    """Ask from within the server's network namespace."""
    assert served.process.poll() is None, served.log
    enter = ["nsenter", "--net", "--target", str(served.process.pid)]
    command = [*enter, sys.executable, "-c", ASK, f"{served.url}{path}", served.key]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_it_refuses_a_changed_model(bento: Bento, tmp_path: Path) -> None:
    """One byte is enough."""
    path = bento.model / "model" / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    try:
        assert "model/model.safetensors: expected sha256" in _refused(bento, tmp_path)
    finally:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(last)


def test_it_refuses_to_start_without_its_model(bento: Bento, tmp_path: Path) -> None:
    """The reference is not enough; the message names what is missing."""
    hidden = bento.model.with_name("hidden")
    bento.model.rename(hidden)
    try:
        assert bento.model.name in _refused(bento, tmp_path)
    finally:
        hidden.rename(bento.model)


def _refused(bento: Bento, folder: Path) -> str:
    port = free_port()
    with bento.elsewhere(folder).serving(bento.command(port), prefix=OFFLINE, port=port) as served:
        assert served.wait_end() == 1
        served.assert_nothing_left()
        return served.log
