"""The release in BentoML's model store: put there once, whole or not at all, and found again by its digest.

Owns everything the release has to do with BentoML. BentoML's own `models.create` copies into the store in place, so
that a kill half way leaves a folder that looks stored; here the model is completed and verified beside the store and
then moved in with one rename.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import attrs
import bentoml
from bentoml.exceptions import BentoMLException
from bentoml.models import BentoModel

from jubako.errors import StartupFault
from jubako.release import staging
from jubako.release.digests import Progress, ignore
from jubako.release.manifest import Manifest
from jubako.release.verify import verify
from jubako.vocabulary import ServedRelease

DESCRIPTION = "model.yaml"


@attrs.frozen
class PinnedModel(BentoModel):
    """A model of the local store and of nowhere else: BentoML's own class asks a remote store for what is missing."""

    release: str = attrs.field(default="", kw_only=True)
    """`name/version`, for the advice."""

    @classmethod
    def of(cls, manifest: Manifest) -> PinnedModel:
        """The reference to put on a service class."""
        return cls(tag=manifest.tag, release=manifest.reference)  # type: ignore[call-arg]

    def to_info(self, alias: str | None = None) -> Any:
        """What the Bento records. Raises `BentoMLException` if the model is not stored here."""
        self._require_stored()
        return super().to_info(alias)

    def resolve(self, base_path: Any = None, global_model_store: Any = None) -> Any:
        """The stored model; copied to `base_path` if given. Raises `BentoMLException` if it is not stored here."""
        self._require_stored()
        if global_model_store is None:
            return super().resolve(base_path)
        return super().resolve(base_path, global_model_store)

    def _require_stored(self) -> None:
        if self.stored is None:
            raise BentoMLException(_absent(str(self.tag), self.release))


def store_folder() -> Path:
    """The folder of BentoML's model store; follows BENTOML_HOME."""
    from bentoml._internal.configuration.containers import BentoMLContainer

    return Path(str(BentoMLContainer.model_store_dir.get()))


def staging_folder() -> Path:
    """Where releases are prepared: beside the store, hence on its filesystem and outside its listing."""
    return store_folder().parent / "jubako-staging"


def model_root(manifest: Manifest) -> Path:
    """The folder of the stored release, not yet verified. Raises `StartupFault` with how to fetch it."""
    root = _root(manifest)
    if not (root / DESCRIPTION).is_file():
        raise StartupFault(_absent(manifest.tag, manifest.reference))
    return root


def is_stored(manifest: Manifest) -> bool:
    """Whether the store has this release; says nothing of its files' contents."""
    return (_root(manifest) / DESCRIPTION).is_file()


def served(manifest: Manifest) -> ServedRelease:
    """What the engine needs to know of the stored release. Raises `StartupFault` if it is not stored."""
    root = model_root(manifest)
    options = manifest.serving.model_dump(exclude_defaults=True)
    if manifest.serving.chat_template is not None:
        options["chat_template"] = str(root / "model" / manifest.serving.chat_template)
    return ServedRelease(
        digest=manifest.digest,
        model_folder=str(root / "model"),
        aliases=manifest.aliases,
        dtype=manifest.dtype,
        adapters={adapter.alias: str(root / "adapters" / adapter.alias) for adapter in manifest.adapters},
        options=options,
    )


def store(manifest: Manifest, release: Path, progress: Progress = ignore) -> Path:
    """Move the files below `release` (laid out as in `verify`) into the store; return the stored folder.

    `release` must be in the staging folder. Does nothing if the release is stored already. Raises `StartupFault` if
    the files are not those of the manifest, or the disk is full; then the store is as it was.
    """
    target = _root(manifest)
    if is_stored(manifest):
        return target
    described = _describe(manifest, release.parent)
    for part, files in manifest.layout().items():
        for file in files:
            staging.place(release / part / file.path, described / part / file.path)
    staging.settle_modes(described)
    verify(manifest, described, progress)
    _flush(described)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(staging.FOLDER_MODE)
    try:
        described.rename(target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise StartupFault(f"{target.parent}: the model store must be on the filesystem of {release}") from None
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise StartupFault(
                f"{target}: something unfinished is in the way, not written by Jubako. Remove it and run "
                f"`jubako release fetch {manifest.reference}`."
            ) from None
        raise
    _sync(target.parent)
    _point_latest(target)
    return target


def _describe(manifest: Manifest, work: Path) -> Path:
    """A folder that BentoML recognises as this model, still without its files."""
    from bentoml._internal.models import ModelStore

    # No usage report from a command that may run where nothing may leave the network.
    os.environ.setdefault("BENTOML_DO_NOT_TRACK", "True")
    private = work / "store"
    private.mkdir()
    about = {"release_digest": manifest.digest, "name": manifest.name, "version": manifest.version}
    labels = {"release": manifest.digest[:16], "name": manifest.name, "version": manifest.version}
    try:
        with bentoml.models.create(manifest.tag, labels=labels, metadata=about, _model_store=ModelStore(private)):
            pass
    except BentoMLException as error:
        raise StartupFault(f"release {manifest.reference}: BentoML refused the model: {error}") from error
    return private / manifest.name / manifest.digest[:16]


def _root(manifest: Manifest) -> Path:
    return store_folder() / manifest.name / manifest.digest[:16]


def _absent(tag: str, reference: str) -> str:
    return (
        f"the model {tag} is not in the model store {store_folder()}; get its pinned files with "
        f"`jubako release fetch {reference}`".rstrip()
    )


def _flush(folder: Path) -> None:
    """Bring every file and folder to the disk, so that a power cut after the rename cannot leave empty files."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _point_latest(target: Path) -> None:
    """Let BentoML's `latest` name the version just stored; nothing of ours ever reads it."""
    draft = target.parent / f".latest.{os.getpid()}"
    draft.write_text(target.name)
    draft.chmod(staging.FILE_MODE)
    draft.replace(target.parent / "latest")
