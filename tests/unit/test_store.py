"""The store: a release is in it whole or not at all, and is found by its digest only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bentoml.exceptions import BentoMLException
from bentoml.models import get

from jubako.errors import StartupFault
from jubako.release import bundle, staging
from jubako.release.manifest import Manifest, dump

LayOut = Callable[[Path], Path]


def _store(manifest: Manifest, lay_out: LayOut) -> Path:
    with staging.staging(bundle.staging_folder()) as work:
        return bundle.store(manifest, lay_out(work / "release"))


def test_a_stored_release_is_found_by_its_digest(store_home: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """BentoML finds the tag, with the digest in its metadata; the engine is told the folders."""
    root = _store(manifest, lay_out)
    model = get(manifest.tag)
    assert Path(model.path) == root == bundle.model_root(manifest)
    assert model.info.metadata["release_digest"] == manifest.digest
    assert get("tiny:latest").tag == model.tag
    served = bundle.served(manifest)
    assert (Path(served.model_folder) / "config.json").is_file()
    assert (Path(served.adapters["tiny-lora"]) / "adapter_config.json").is_file()
    assert served.aliases == ("tiny-model", "tiny")
    assert not list(store_home.glob("jubako-staging/tmp*"))


def test_storing_twice_changes_nothing(store_home: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """The second time, the files are the same inodes as the first time."""
    root = _store(manifest, lay_out)
    before = (root / "model/model.safetensors").stat()
    assert _store(manifest, lay_out) == root
    assert (root / "model/model.safetensors").stat() == before


def test_wrong_files_are_never_stored(store_home: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """Verification comes before the rename."""
    with staging.staging(bundle.staging_folder()) as work:
        root = lay_out(work / "release")
        (root / "model/tokenizer.json").write_bytes(b"x" * 18)
        with pytest.raises(StartupFault, match=r"model/tokenizer\.json: expected sha256"):
            bundle.store(manifest, root)
    assert not bundle.is_stored(manifest)


def test_an_absent_release_says_how_to_fetch_it(store_home: Path, manifest: Manifest) -> None:
    """Both for the server and for BentoML, and never by asking a remote store."""
    with pytest.raises(StartupFault, match="jubako release fetch tiny/1"):
        bundle.model_root(manifest)
    reference = bundle.PinnedModel.of(manifest)
    for ask in (reference.resolve, reference.to_info):
        with pytest.raises(BentoMLException, match="jubako release fetch tiny/1"):
            ask()


def test_a_stored_release_resolves_for_bentoml(store_home: Path, manifest: Manifest, lay_out: LayOut) -> None:
    """The reference on a service class gives the stored model."""
    root = _store(manifest, lay_out)
    reference = bundle.PinnedModel.of(manifest)
    assert Path(reference.resolve().path) == root
    assert str(reference.to_info().tag) == manifest.tag


KILLED = """
import os, sys, time
from pathlib import Path
from jubako.release import bundle, staging
from jubako.release.manifest import load
manifest = load(Path(sys.argv[1]))
stop = sys.argv[3]
def wait(*_):
    print("here", flush=True); time.sleep(60)
with staging.staging(bundle.staging_folder()) as work:
    import shutil
    shutil.copytree(sys.argv[2], work / "release")
    if stop == "placing":
        real, count = staging.place, iter(range(99))
        staging.place = lambda *a: wait() if next(count) == 2 else real(*a)
    elif stop == "verifying":
        bundle.verify = wait
    elif stop == "renaming":
        bundle._flush = wait
    bundle.store(manifest, work / "release")
"""


@pytest.mark.parametrize("stop", ["placing", "verifying", "renaming"])
def test_a_kill_while_storing_leaves_nothing_that_resolves(
    store_home: Path, tmp_path: Path, manifest: Manifest, lay_out: LayOut, stop: str
) -> None:
    """After SIGKILL at any step the release is absent, and the next attempt succeeds and tidies up."""
    (tmp_path / "manifest.yaml").write_text(dump(manifest))
    files = lay_out(tmp_path / "files")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "manifest.yaml"), str(files), stop]
    with subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
    assert not bundle.is_stored(manifest)
    with pytest.raises(BentoMLException):
        get(manifest.tag)
    started = time.monotonic()
    root = _store(manifest, lay_out)
    assert time.monotonic() - started < 50  # the other one would have gone on for 60
    assert Path(get(manifest.tag).path) == root
    assert not list(store_home.glob("jubako-staging/tmp*"))
