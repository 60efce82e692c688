"""`jubako keys` as it is run, and the keys that the first `jubako serve` makes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jubako import settings
from jubako.errors import StartupFault
from jubako.gate import demo, keys, tenants, writing
from jubako.gate.keys import KeyRecord
from jubako.gate.tenants import Tenants
from tests.project import Project

NOW = datetime.now(UTC)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project's folder, and the package that is under test."""
    package = Path(settings.__file__).parents[1]
    return Project.copy_to(tmp_path / "project", {"PYTHONPATH": str(package)})


def keys_file(project: Project) -> Path:
    """Where its keys are."""
    return project.folder / ".jubako" / "keys.json"


def records(project: Project) -> Mapping[str, KeyRecord]:
    """What is in its keys file."""
    return keys.load(keys_file(project))


def create(project: Project, *arguments: str) -> str:
    """The key that `jubako keys create` prints."""
    done = project.jubako("keys", "create", *arguments)
    assert done.returncode == 0, done.stderr
    key, end = done.stdout.split("\n")
    assert end == ""
    assert key not in done.stderr
    return key


def test_a_key_is_printed_alone_and_once(project: Project) -> None:
    """So that it can be piped into a file; what is kept is its digest."""
    key = create(project, "default", "--scope", "chat", "--scope", "models", "--expires", "90d", "--name", "laptop")
    (record,) = records(project).values()
    assert record.digest == keys.digest(key)
    assert (record.tenant, record.name, set(record.scopes or ())) == ("default", "laptop", {"chat", "models"})
    assert record.expires == record.created + timedelta(days=90)
    assert stat.S_IMODE(keys_file(project).stat().st_mode) == 0o600
    listed = project.jubako("keys", "list")
    assert record.id in listed.stdout
    assert key.split("_", 2)[2] not in listed.stdout


def test_keys_are_listed_for_people_and_for_programs(project: Project) -> None:
    """With their state, and without a digest."""
    ids = [keys.key_id(create(project, tenant)) for tenant in ("default", "operations")]
    assert project.jubako("keys", "revoke", str(ids[0])).returncode == 0
    listed = json.loads(project.jubako("keys", "list", "--json").stdout)
    assert [(one["id"], one["state"]) for one in listed] == [(ids[0], "revoked"), (ids[1], "live")]
    assert set(listed[0]) == {"id", "tenant", "state", "scopes", "created", "expires", "revoked", "name"}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("create", "defualt"), 1, "no tenant 'defualt'; did you mean default?"),
        (("create", "default", "--expires", "soon"), 2, "write 90d"),
        (("create", "default", "--expires", "9999d"), 2, "ten years"),
        (("create", "default", "--scope", "all"), 2, "is not one of"),
        (("create", "default", "--name", "a\nb"), 2, "printable"),
        (("create", "default", "--name", demo.NAME), 2, "other than"),
        (("revoke", "aaaaaaaaaaaa"), 1, "no key 'aaaaaaaaaaaa'"),
        (("revoke", "jbk_aaaaaaaaaaaa_secret"), 2, "give the id alone"),
        (("rotate", "aaaaaaaaaaaa"), 1, "no key 'aaaaaaaaaaaa'"),
        (("list",), 1, "jubako keys create"),
    ],
)
def test_what_cannot_be_done_is_said(project: Project, arguments: tuple[str, ...], status: int, message: str) -> None:
    """On standard error, with an exit status, and nothing on standard output."""
    done = project.jubako("keys", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in " ".join(done.stderr.split())
    assert "secret" not in done.stderr


def test_a_key_is_replaced_with_or_without_grace(project: Project) -> None:
    """The new one is like the old one; the old one ends at once, or after the grace."""
    old = keys.key_id(create(project, "default", "--scope", "chat", "--name", "app", "--expires", "10d"))
    done = project.jubako("keys", "rotate", str(old), "--grace", "1h")
    new = keys.key_id(done.stdout.strip())
    assert done.returncode == 0
    kept = records(project)
    replaced, replacing = kept[str(old)], kept[str(new)]
    assert (replacing.tenant, replacing.scopes, replacing.name) == ("default", ("chat",), "app")
    assert replacing.expires == replacing.created + timedelta(days=10)
    assert replaced.expires == replacing.created + timedelta(hours=1)
    assert project.jubako("keys", "rotate", str(new)).returncode == 0
    assert records(project)[str(new)].state(datetime.now(UTC)) == "expired"
    again = project.jubako("keys", "rotate", str(new))
    assert (again.returncode, again.stdout) == (1, "")


def test_a_scope_that_the_policy_lacks_is_told(project: Project) -> None:
    """The key is made: the policy may change."""
    done = project.jubako("keys", "create", "default", "--scope", "operator")
    assert "does not allow operator" in done.stderr
    assert keys.key_id(done.stdout.strip())


def test_many_at_once_lose_no_key(project: Project) -> None:
    """Real processes, all at the same time."""
    command = [sys.executable, "-m", "jubako.cli", "keys", "create", "default"]
    environment = os.environ | project.environment
    running = [
        subprocess.Popen(command, cwd=project.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    made = {keys.digest(process.communicate()[0].decode().strip()) for process in running}
    assert {one.digest for one in records(project).values()} == made
    assert len(made) == 8


def test_the_commands_load_neither_engine_nor_server(project: Project) -> None:
    """They answer in a moment."""
    code = "import sys, jubako.keys_command; print([m for m in ('vllm', 'bentoml', 'torch') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | project.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_check_of_the_settings_looks_at_tenants_and_keys(project: Project) -> None:
    """All faults together, of whichever file; the folder may be named by the variable."""
    project.environment["JUBAKO_CONFIGURATION"] = str(project.folder / "configuration")
    assert project.jubako("config", "check").returncode == 0
    tenants_file = project.folder / "configuration" / "tenants.yaml"
    text = tenants_file.read_text().replace("models: all", "models: [smollm2-135m-instrukt]")
    tenants_file.write_text(text.replace("queue_seconds: ", "queue_second: ", 1))
    keys_file(project).parent.mkdir()
    keys_file(project).write_text("{")
    done = Project(project.folder.parent, project.environment).jubako("config", "check")
    assert done.returncode == 1
    for message in (
        "did you mean smollm2-135m-instruct?",
        "unknown key (did you mean queue_seconds?)",
        "keys.json:1: not valid JSON",
    ):
        assert message in done.stderr


# -- the first start


@pytest.fixture
def known(project: Project) -> Tenants:
    """The project's tenants."""
    return tenants.of(settings.load(project.folder, {}), None)


def ensure(project: Project, known: Tenants) -> list[Path]:
    """What a start does; the plain files it wrote."""
    return demo.ensure(project.folder, keys_file(project), known, NOW)


def assert_whole(project: Project) -> None:
    """Both plain files hold a key that lives."""
    live = {one.digest: one.tenant for one in records(project).values() if one.state(NOW) == "live"}
    for path, tenant in (
        (demo.demo_key_file(project.folder), "default"),
        (demo.operator_key_file(project.folder), "operations"),
    ):
        assert live[keys.digest(path.read_text().strip())] == tenant
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_first_start_makes_two_keys_and_the_second_none(project: Project, known: Tenants) -> None:
    """One for callers, one for the operator."""
    assert len(ensure(project, known)) == 2
    assert_whole(project)
    before = keys_file(project).read_bytes()
    assert ensure(project, known) == []
    assert keys_file(project).read_bytes() == before


@pytest.mark.parametrize("damage", ["gone", "empty", "other", "cut"])
@pytest.mark.parametrize("name", ["dev.key", "operator.key"])
def test_a_plain_file_that_does_not_fit_is_mended(project: Project, known: Tenants, name: str, damage: str) -> None:
    """And no other key is touched."""
    ensure(project, known)
    path, before = project.folder / ".jubako" / name, records(project)
    content = path.read_text()
    path.write_text({"empty": "", "other": "something else\n", "cut": content[:20]}.get(damage, ""))
    if damage == "gone":
        path.unlink()
    assert ensure(project, known) == [path]
    assert_whole(project)
    assert before.items() <= records(project).items()


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("step", range(3))
def test_a_start_that_is_killed_is_made_whole_by_the_next(
    project: Project, known: Tenants, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of its three files."""
    real, calls = writing.replace, 0

    def replace(path: Path, content: bytes) -> None:
        nonlocal calls
        if calls == step:
            raise Killed
        calls += 1
        real(path, content)

    monkeypatch.setattr(writing, "replace", replace)
    with pytest.raises(Killed):
        ensure(project, known)
    monkeypatch.undo()
    ensure(project, known)
    assert_whole(project)


def test_what_an_operator_decided_stays(project: Project, known: Tenants) -> None:
    """A demo key that was revoked is not made again, a file of the operator's own gets no demo key."""
    ensure(project, known)
    with keys.change(keys_file(project)) as changed:
        for one in list(changed.values()):
            changed[one.id] = keys.revoked(one, NOW)
    demo.demo_key_file(project.folder).unlink()
    assert ensure(project, known) == []
    keys_file(project).unlink()
    create(project, "default")
    assert ensure(project, known) == []


def test_a_mounted_keys_file_is_never_touched(project: Project, known: Tenants, tmp_path: Path) -> None:
    """Missing it is a fault with advice, also behind a link; there it is left as it is."""
    mounted = tmp_path / "mounted" / "keys.json"
    with pytest.raises(StartupFault, match="jubako keys create"):
        demo.ensure(project.folder, mounted, known, NOW)
    keys_file(project).parent.mkdir()
    keys_file(project).symlink_to(mounted)
    with pytest.raises(StartupFault, match="not in the project's folder"):
        ensure(project, known)
    mounted.parent.mkdir()
    mounted.write_bytes(keys.dump({}))
    assert ensure(project, known) == []
    assert [path.name for path in mounted.parent.iterdir()] == ["keys.json"]


def test_a_malformed_keys_file_is_no_first_start(project: Project, known: Tenants) -> None:
    """It is a fault, and stays for whoever mends it."""
    keys_file(project).parent.mkdir()
    keys_file(project).write_text('{"version": 1, "ke')
    with pytest.raises(StartupFault, match="not valid JSON"):
        ensure(project, known)
    assert keys_file(project).read_text() == '{"version": 1, "ke'
