"""What the real server refuses to start with: before the socket opens, exit 1, one message, no respawn."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from jubako.release import manifest as manifests
from tests.project import DEMO, Project, Served, free_port
from tests.wrong_model import wrong_release

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path, model_folder: Path) -> Project:
    """The demo release in a store of its own, its files linked rather than copied."""
    home = tmp_path / "home"
    stored = model_folder.parent
    mine = home / "models" / stored.parent.name / stored.name
    shutil.copytree(stored, mine, copy_function=_link_large)
    return Project.copy_to(tmp_path / "project", {"BENTOML_HOME": str(home)})


def _link_large(source: str, target: str) -> None:
    large = Path(source).stat().st_size > 1 << 20
    Path(target).hardlink_to(source) if large else shutil.copy2(source, target)


def _stored(project: Project) -> Path:
    manifest = manifests.load(project.folder / "configuration" / "releases" / DEMO / "1" / "manifest.yaml")
    return Path(project.environment["BENTOML_HOME"]) / "models" / manifest.tag.replace(":", "/")


def _refused(project: Project) -> str:
    """The message of a start that must fail."""
    with project.serving() as served:
        status = served.wait_end()
        log = served.log
        _only_refused(served, status)
    return log


def _only_refused(served: Served, status: int) -> None:
    assert status == 1, served.log
    assert "Traceback" not in served.log, served.log
    assert "Service jubako-server initialized" not in served.log, "a worker was started"
    served.assert_nothing_left()


def test_every_fault_of_the_files_is_told_at_once(project: Project) -> None:
    """Missing, altered and extra files are named, with what was expected and found."""
    model = _stored(project) / "model"
    (model / "generation_config.json").unlink()
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config + " ")
    (model / "pickle.bin").write_bytes(b"x")
    log = _refused(project)
    for name in ("generation_config.json", "config.json", "pickle.bin"):
        assert f"model/{name}" in log
    assert "expected" in log
    assert "found" in log


def test_a_manifest_in_the_folder_of_another_release_is_refused(project: Project) -> None:
    """What the settings name is what is served."""
    releases = project.folder / "configuration" / "releases"
    shutil.copytree(releases / DEMO / "1", releases / "other" / "9")
    project.environment |= {"JUBAKO__RELEASE__NAME": "other", "JUBAKO__RELEASE__VERSION": "9"}
    assert f"the manifest is that of {DEMO}/1" in _refused(project)


def test_an_altered_file_of_the_same_size_is_found(project: Project) -> None:
    """The contents count, not the size."""
    template = _stored(project) / "model" / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text.replace("user", "uesr", 1) if "user" in text else "x" + text[1:])
    assert "model/chat_template.jinja: expected sha256" in _refused(project)


def test_a_release_that_is_not_stored_is_refused_with_advice(project: Project) -> None:
    """The message says how to get it, and nothing goes to the network."""
    shutil.rmtree(_stored(project))
    assert "jubako release fetch" in _refused(project)


def test_plain_bentoml_serve_refuses_too(project: Project) -> None:
    """The checks are the service's, not only the command's; without a key nothing starts."""
    port = free_port()
    command = [sys.executable, "-m", "bentoml", "serve", "service:Jubako", "--port", str(port), "--host", "127.0.0.1"]
    with project.serving(command, port=port) as served:
        status = served.wait_end()
        assert "Make a key with `jubako keys create TENANT`" in served.log
        _only_refused(served, status)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("JUBAKO__ENGINE__OPTIONS__MAX_MODEL_LENGTH", "5", "did you mean max_model_len?"),
        ("JUBAKO__ENGINE__OPTIONS__TRUST_REMOTE_CODE", "true", "set by Jubako"),
        ("JUBAKO__ENGINE__PROFILE", "cpus", "did you mean cpu?"),
        ("JUBAKO__LIFE__DRAIN_SECOND", "5", "did you mean JUBAKO__LIFE__DRAIN_SECONDS?"),
        ("JUBAKO__RELEASE__VERSION", "'9'", "manifest.yaml"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(project: Project, variable: str, value: str, told: str) -> None:
    """The nearest known name is suggested."""
    project.environment[variable] = value
    assert told in _refused(project)


def test_a_value_that_vllm_refuses_ends_the_start(project: Project) -> None:
    """What only vLLM can judge is told by the worker, and the server ends."""
    project.environment["JUBAKO__ENGINE__OPTIONS__MAX_NUM_SEQS"] = "many"
    with project.serving() as served:
        assert served.wait_end(120) == 1
        assert "engine options" in served.log
        served.assert_nothing_left()


def test_a_wrong_model_does_not_become_ready(project: Project, model_folder: Path, tmp_path: Path) -> None:
    """Weights that are altered and pinned anew pass every digest, and fail the smoke prompts by name."""
    wrong_release(project, model_folder, tmp_path)
    with project.serving() as served:
        assert served.wait_end(180) == 1
        assert "smoke prompt 'capital-of-japan': expected 'The capital of Japan is Tokyo.', found" in served.log
        assert "ready: release" not in served.log
        served.assert_nothing_left()


def test_no_key_is_made_outside_the_project(project: Project, tmp_path: Path) -> None:
    """A mounted key that is not there is a mistake to be told, not a server with a key that nobody knows."""
    missing = tmp_path / "mounted" / "key"
    project.environment["JUBAKO__AUTHENTICATION__KEYS_FILE"] = str(missing)
    assert str(missing) in _refused(project)
    assert not missing.parent.exists()
