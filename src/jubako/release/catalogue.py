"""The manifests below a configuration folder: `releases/<name>/<version>/manifest.yaml`.

Owns finding, reading and writing them, and that a written one is never overwritten. Knows nothing of model files.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from jubako import documents
from jubako.errors import StartupFault
from jubako.release import manifest as manifests
from jubako.release.manifest import Manifest, TagPart

FILE = "manifest.yaml"


def manifest_path(configuration: Path, reference: str) -> Path:
    """Where the manifest of `name/version` is or would be. Raises `StartupFault` if `reference` is not of that form."""
    name, slash, version = reference.partition("/")
    rule = TypeAdapter(TagPart)
    try:
        rule.validate_python(name)
        rule.validate_python(version)
    except ValidationError:
        slash = ""
    if not slash:
        raise StartupFault(
            f"{reference!r} is not a release: write name/version, each of at most 63 lower-case letters, digits, "
            "dots, dashes and underscores, beginning and ending with a letter or digit"
        )
    return configuration / "releases" / name / version / FILE


def references(configuration: Path) -> list[str]:
    """Every `name/version` that has a manifest, sorted."""
    found = (configuration / "releases").glob(f"*/*/{FILE}")
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in found)


def load(configuration: Path, reference: str) -> Manifest:
    """The manifest of `reference`. Raises `StartupFault` if there is none, or it is at fault or in the wrong place."""
    path = manifest_path(configuration, reference)
    if not path.exists():
        known = references(configuration)
        near = documents.nearest(reference, known)
        advice = f"did you mean {near}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise StartupFault(f"{path}: no such release; {advice}")
    manifest = manifests.load(path)
    if manifest.reference != reference:
        raise StartupFault(f"{path}: the manifest is that of {manifest.reference}, its folder that of {reference}")
    return manifest


def write_new(configuration: Path, manifest: Manifest) -> Path:
    """Write the manifest of a new version, at once and for good.

    Raises `StartupFault` if the version exists: a change is a new version.
    """
    path = manifest_path(configuration, manifest.reference)
    draft = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(manifests.dump(manifest))
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)  # unlike a rename, a link fails if the target exists
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError:
        raise StartupFault(existing(path)) from None
    except OSError as error:
        raise StartupFault(f"{path}: cannot be written: {error.strerror}") from None
    return path


def existing(path: Path) -> str:
    """The refusal to overwrite."""
    return f"{path}: this version exists and does not change; a change is a new version: choose another VERSION"
