"""What the tests with a real engine share: the demo model, and one server that most of them use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import yaml

from jubako.release import manifest
from tests import tenants
from tests.contract.corpus import ADAPTER, CONTEXT_TOKENS, PATIENT
from tests.project import DEMO, REPOSITORY, Project, Served
from tests.tiny_lora import write_adapter

# How long an example takes depends on what else the machine does; pytest's own timeout is the bound.
hypothesis.settings.register_profile("jubako", deadline=None)
hypothesis.settings.load_profile("jubako")


@pytest.fixture(scope="session")
def demo_manifest() -> manifest.Manifest:
    """The manifest of the demo release."""
    return manifest.load(REPOSITORY / "configuration" / "releases" / DEMO / "1" / "manifest.yaml")


@pytest.fixture(scope="session")
def model_folder(demo_manifest: manifest.Manifest) -> Path:
    """The demo model's safetensors, in the store that `jubako release fetch` filled."""
    from jubako.release import bundle

    return bundle.model_root(demo_manifest) / "model"


@pytest.fixture(scope="session")
def adapted_project(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, demo_manifest: manifest.Manifest
) -> Project:
    """A project whose release has an adapter and whose engine knows tools, with a store of its own."""
    base = tmp_path_factory.mktemp("adapted")
    project = Project.copy_to(base / "project", {"BENTOML_HOME": str(base / "home")})
    adapter = write_adapter(model_folder, base / "adapter")
    options = ["--from-folder", str(model_folder), "--adapter", f"{ADAPTER}={adapter}", "--alias", DEMO]
    options += ["--tool-call-parser", "hermes"]
    options += ["--alias", "smollm2", "--licence", "Apache-2.0", "--licence-reason", "for the tests"]
    options += ["--smoke", str(base / "smoke.yaml")]
    prompts = [prompt.model_dump(mode="json", exclude_none=True) for prompt in demo_manifest.smoke]
    (base / "smoke.yaml").write_text(yaml.safe_dump(prompts))
    created = project.jubako("release", "create", "adapted", "1", *options)
    assert created.returncode == 0, created.stderr
    engine = {"MAX_LORA_RANK": "8", "MAX_MODEL_LEN": str(CONTEXT_TOKENS), "MAX_NUM_SEQS": "16"}
    engine |= {"ENABLE_PROMPT_TOKENS_DETAILS": "true"}
    project.environment |= {f"JUBAKO__ENGINE__OPTIONS__{name}": value for name, value in engine.items()}
    project.environment |= PATIENT
    # Short, so that what they bound is seen within a test.
    project.environment |= {"JUBAKO__LIMITS__BODY_SECONDS": "3", "JUBAKO__STREAM__STALLED_READER_SECONDS": "5"}
    project.environment |= {"JUBAKO__ADMISSION__QUEUE_REQUESTS": "64"}
    tenants.write(project)
    project.environment |= {"JUBAKO__RELEASE__NAME": "adapted", "JUBAKO__RELEASE__VERSION": "'1'"}
    return project


@pytest.fixture(scope="session")
def jubako_server(adapted_project: Project) -> Iterator[Served]:
    """One server for all tests that leave it as they found it."""
    with adapted_project.serving() as served:
        yield served.wait_ready()


@pytest.fixture(scope="session")
def keys(adapted_project: Project, jubako_server: Served) -> tenants.Keys:
    """A key of each tenant of that server."""
    return tenants.Keys(adapted_project, jubako_server)
