"""Settings: every fault at once, each with its place, and the environment on top."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from jubako import settings
from jubako.errors import StartupFault
from tests.project import REPOSITORY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the repository's configuration."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    return tmp_path


def change(root: Path, old: str, new: str) -> int:
    """Change server.yaml; the line of the change."""
    path = root / "configuration" / "server.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def faults(root: Path, environment: dict[str, str] | None = None) -> list[str]:
    """The lines of the fault that loading gives."""
    with pytest.raises(StartupFault) as raised:
        settings.load(root, environment or {})
    return str(raised.value).splitlines()


def test_the_repository_s_own_configuration_is_right(root: Path) -> None:
    """And relative paths start at the project's folder."""
    loaded = settings.load(root, {})
    assert loaded.first_byte_seconds == 600
    assert loaded.keys_file == root / ".jubako" / "keys.json"
    assert loaded.tenants_file == root / "configuration" / "tenants.yaml"
    assert set(settings.profiles(loaded.configuration)) == {"cpu", "gpu"}


def test_the_environment_is_on_top(root: Path) -> None:
    """Scalars are read as YAML, single engine options join those of the profile, other variables are not ours."""
    environment = {
        "JUBAKO__LIMITS__BODY_SECONDS": "2.5",
        "JUBAKO__AUTHENTICATION__KEYS_FILE": "/run/secrets/keys.json",
        "JUBAKO__ENGINE__OPTIONS__MAX_NUM_SEQS": "4",
        "JUBAKO__ENGINE__OPTIONS__ENABLE_LORA": "true",
        "JUBAKO__RELEASE__VERSION": "'7'",
        "JUBAKO_ADDRESS": "http://here",
    }
    loaded = settings.load(root, environment)
    assert loaded.server.limits.body_seconds == 2.5
    assert loaded.keys_file == Path("/run/secrets/keys.json")
    assert loaded.engine_options["max_num_seqs"] == 4
    assert loaded.engine_options["enable_lora"] is True
    assert loaded.engine_options["enforce_eager"] is True
    assert loaded.server.release.version == "7"


def test_an_unknown_key_is_told_with_line_and_nearest(root: Path) -> None:
    """So that a typing error costs one start and no search."""
    line = change(root, "body_seconds:", "body_second:")
    found = faults(root)
    path = root / "configuration" / "server.yaml"
    assert f"{path}:{line}: limits.body_second: unknown key (did you mean body_seconds?)" in found


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("JUBAKO__LIMITS__BODY_BYTE", "JUBAKO__LIMITS__BODY_BYTES"),
        ("JUBAKO__LIMIT__BODY_BYTES", "JUBAKO__LIMITS__BODY_BYTES"),
        ("JUBAKO__LIFE__DRAIN_SECOND", "JUBAKO__LIFE__DRAIN_SECONDS"),
    ],
)
def test_an_unknown_variable_is_told_with_the_nearest(root: Path, variable: str, nearest: str) -> None:
    """The prefix is ours, so what follows must be known."""
    assert faults(root, {variable: "1"}) == [f"environment: {variable}: no such setting; did you mean {nearest}?"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("JUBAKO__LIMITS__BODY_BYTES", "many"),
        ("JUBAKO__LIMITS__BODY_BYTES", "10"),
        ("JUBAKO__LIMITS__BODY_SECONDS", "0"),
        ("JUBAKO__LIMITS__BODY_SECONDS", ".nan"),
        ("JUBAKO__LIMITS__BODY_SECONDS", ".inf"),
        ("JUBAKO__LIMITS__BODY_SECONDS", ""),
        ("JUBAKO__RELEASE__NAME", "../elsewhere"),
        ("JUBAKO__RELEASE__NAME", "[a"),
        ("JUBAKO__RELEASE__NAME", "2026-13-45"),
        ("JUBAKO__RELEASE__NAME", "!!python/name:os.system"),
        ("JUBAKO__ENGINE__OPTIONS", "[1]"),
        ("JUBAKO__LIMITS", "3"),
        ("JUBAKO__LIMITS__", "3"),
        ("JUBAKO__", "3"),
        ("JUBAKO__LIMITS__BODY_BYTES__MORE", "3"),
    ],
)
def test_a_wrong_value_of_a_variable_is_told_by_its_name(root: Path, variable: str, value: str) -> None:
    """Whatever is wrong with it, the message starts with where it stands."""
    found = faults(root, {variable: value})
    assert found
    assert all(line.startswith(f"environment: {variable}: ") for line in found)


def test_all_faults_are_told_at_once(root: Path) -> None:
    """Of the file with file and line, of the environment with the variable."""
    path = root / "configuration" / "server.yaml"
    first = change(root, "body_bytes: 4194304", "body_bytes: lots")
    second = change(root, "drain_seconds: 30", "drain_secs: 30")
    found = faults(
        root, {"JUBAKO__STREAM__KEEP_ALIVE": "3", "JUBAKO__ENGINE__PROFILE": "[", "JUBAKO__LIFE__STALL_SECONDS": "-1"}
    )
    for start in (
        f"{path}:{first}: limits.body_bytes",
        f"{path}:{second}: life.drain_secs",
        "environment: JUBAKO__STREAM__KEEP_ALIVE: no such setting",
        "environment: JUBAKO__ENGINE__PROFILE: the value is not YAML",
        "environment: JUBAKO__LIFE__STALL_SECONDS: ",
    ):
        assert sum(line.startswith(start) for line in found) == 1, (start, found)


def test_the_environment_does_not_excuse_a_wrong_file(root: Path) -> None:
    """The next process may run without the variable."""
    change(root, "body_bytes: 4194304", "body_bytes: lots")
    assert any("limits.body_bytes" in line for line in faults(root, {"JUBAKO__LIMITS__BODY_BYTES": "4096"}))


def test_an_unknown_profile_is_told_with_those_that_exist(root: Path) -> None:
    """And the nearest of them."""
    (found,) = faults(root, {"JUBAKO__ENGINE__PROFILE": "cpus"})
    assert "profiles here: cpu, gpu" in found
    assert "did you mean cpu?" in found


def test_a_wrong_profile_is_told_with_line(root: Path) -> None:
    """It is a file like the other."""
    path = root / "configuration" / "engines" / "cpu.yaml"
    path.write_text("environment: {}\noption: {}\n")
    found = faults(root)
    assert any(line.startswith(f"{path}:2: option: unknown key (did you mean options?)") for line in found)


@pytest.mark.parametrize("text", ["", "[1, 2]", "just text", "release: {}", "release: null"])
def test_a_file_of_another_shape_is_a_fault(root: Path, text: str) -> None:
    """Never a traceback."""
    (root / "configuration" / "server.yaml").write_text(text)
    assert all("server.yaml" in line for line in faults(root))


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    """With its path."""
    assert faults(tmp_path) == [f"{tmp_path}/configuration/server.yaml: no such file"]


def test_explain_shows_every_setting_in_force(root: Path) -> None:
    """One line each, the environment included."""
    lines = settings.explain(settings.load(root, {"JUBAKO__LIMITS__BODY_SECONDS": "3"})).splitlines()
    assert "limits.body_seconds = 3.0" in lines
    assert "engine option enforce_eager = True" in lines
    document = yaml.safe_load((root / "configuration" / "server.yaml").read_text())
    for section, keys in document.items():
        for key in keys:
            assert any(line.startswith((f"{section}.{key} = ", f"{section}.{key}.")) for line in lines)


def test_a_whole_number_names_a_version(tmp_path: Path) -> None:
    """`JUBAKO__RELEASE__VERSION=2` means what it says, though YAML reads a number."""
    shutil.copytree(REPOSITORY / "configuration", tmp_path / "configuration")
    assert settings.load(tmp_path, {"JUBAKO__RELEASE__VERSION": "2"}).server.release.version == "2"


JWT = {
    "ISSUER": "https://id.example",
    "AUDIENCE": "jubako",
    "JWKS": "https://id.example/jwks.json",
    "TENANT_CLAIM": "tenant",
    "SCOPE_CLAIM": "null",
    "ALGORITHMS": "[RS256]",
    "LEEWAY_SECONDS": "30",
    "CACHE_SECONDS": "300",
}


def jwt_environment(**changes: str) -> dict[str, str]:
    """Variables that set a whole `authentication.jwt`, with `changes`."""
    return {f"JUBAKO__AUTHENTICATION__JWT__{name}": value for name, value in (JWT | changes).items()}


def test_a_section_that_the_file_leaves_out_can_come_from_the_environment(root: Path) -> None:
    """Every key of it is a variable, and `explain` shows them instead of the empty section."""
    loaded = settings.load(root, jwt_environment())
    assert loaded.server.authentication.jwt is not None
    assert loaded.server.authentication.jwt.issuer == "https://id.example"
    lines = settings.explain(loaded).splitlines()
    assert "authentication.jwt.algorithms = ['RS256']" in lines
    assert not any(line.startswith("authentication.jwt =") for line in lines)
    assert "authentication.jwt = None" in settings.explain(settings.load(root, {})).splitlines()


def test_a_section_in_the_file_can_be_changed_and_taken_away_from_the_environment(root: Path) -> None:
    """One key of it, or all of it."""
    section = yaml.safe_dump(
        {name.lower(): yaml.safe_load(value) for name, value in JWT.items()}, default_flow_style=True
    )
    change(root, "jwt: null", f"jwt: {section.strip()}")
    loaded = settings.load(root, {"JUBAKO__AUTHENTICATION__JWT__AUDIENCE": "other"})
    assert loaded.server.authentication.jwt is not None
    assert (loaded.server.authentication.jwt.audience, loaded.server.authentication.jwt.issuer) == (
        "other",
        "https://id.example",
    )
    assert settings.load(root, {"JUBAKO__AUTHENTICATION__JWT": "null"}).server.authentication.jwt is None


def test_a_section_that_is_begun_must_be_whole(root: Path) -> None:
    """Each variable that is missing is named."""
    found = faults(root, {"JUBAKO__AUTHENTICATION__JWT__ISSUER": "https://id.example"})
    assert len(found) == len(JWT) - 1
    beside = "is required beside JUBAKO__AUTHENTICATION__JWT__ISSUER"
    assert f"environment: JUBAKO__AUTHENTICATION__JWT__CACHE_SECONDS: {beside}" in found


def test_an_unknown_variable_of_an_optional_section_has_a_nearest(root: Path) -> None:
    """Though the section is not in the file."""
    (found,) = faults(root, jwt_environment() | {"JUBAKO__AUTHENTICATION__JWT__ISSUERS": "x"})
    assert found.endswith("JWT__ISSUERS: no such setting; did you mean JUBAKO__AUTHENTICATION__JWT__ISSUER?")


@pytest.mark.parametrize(
    ("source", "accepted"),
    [
        ("https://id.example/jwks", True),
        ("http://127.0.0.1:8080/jwks", True),
        ("http://[::1]/jwks", True),
        ("http://localhost/jwks", True),
        ("/run/secrets/jwks.json", True),
        ("http://id.example/jwks", False),
        ("http://127.0.0.1.example/jwks", False),
        ("https://user:secret@id.example/jwks", False),
        ("https:///jwks", False),
        ("file:///etc/jwks.json", False),
        ("ftp://id.example/jwks", False),
    ],
)
def test_a_key_set_comes_from_a_file_or_over_https(root: Path, source: str, *, accepted: bool) -> None:
    """Whoever could change the key set on its way could sign tokens."""
    if accepted:
        settings.load(root, jwt_environment(JWKS=source))
    else:
        assert all("JWT__JWKS" in line and "secret" not in line for line in faults(root, jwt_environment(JWKS=source)))


def test_redis_without_an_address_is_a_fault_of_the_settings(root: Path) -> None:
    """Of the file with its line, of the environment with the variable; with the address it is none."""
    (found,) = faults(root, {"JUBAKO__BUDGETS__STORE": "redis"})
    assert found.startswith(
        "environment: JUBAKO__BUDGETS__STORE: store is redis, and redis_url is null: write redis://"
    )
    address = "redis://redis:6379/0"
    loaded = settings.load(root, {"JUBAKO__BUDGETS__STORE": "redis", "JUBAKO__BUDGETS__REDIS_URL": address})
    assert loaded.server.budgets.redis_url == address
    path = root / "configuration" / "server.yaml"
    path.write_text(path.read_text().replace("store: sqlite", "store: redis"))
    (found,) = faults(root)
    line = path.read_text().splitlines().index("budgets:") + 1
    assert found.startswith(f"{path}:{line}: budgets: store is redis, and redis_url is null")


def test_token_algorithms_are_asymmetric_ones(root: Path) -> None:
    """`none` and shared secrets cannot be configured."""
    for algorithm in ("none", "HS256", "PS256"):
        assert faults(root, jwt_environment(ALGORITHMS=f"[{algorithm}]"))
