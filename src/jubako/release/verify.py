"""Whether the files on disk are exactly the files of the manifest.

Owns the comparison and its one message. Knows nothing of stores or sources. Sizes and names first, because they are
free; contents only if those agree.

Below the root: `model/<files>`, `adapters/<alias>/<files>`, and BentoML's `model.yaml`, which is not compared.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from jubako.errors import StartupFault
from jubako.release import digests
from jubako.release.manifest import Manifest, PinnedFile

IGNORED = frozenset({"model.yaml"})
MAX_LINES = 50

Expected = dict[str, PinnedFile]


def verify(manifest: Manifest, root: Path, progress: digests.Progress = digests.ignore) -> None:
    """Return if the files below `root` are those of the manifest, byte for byte.

    Raises `StartupFault` with every fault in one message, `file: expected …, found …` on each line. Symbolic links
    are a fault wherever they point: what they lead to can be changed without touching the release.
    """
    expected = {f"{folder}/{file.path}": file for folder, files in manifest.layout().items() for file in files}
    faults = _structure(expected, root) or _contents(expected, root, progress)
    if faults:
        raise StartupFault(_message(manifest, root, faults))


def _structure(expected: Expected, root: Path) -> list[str]:
    """What can be told without reading contents: missing, additional, wrong kind, wrong size."""
    if not root.is_dir():
        return [f"{root}: expected a folder, found " + ("something else" if root.exists() else "nothing")]
    folders = {str(parent) for path in expected for parent in PurePosixPath(path).parents}
    seen: set[str] = set()
    faults: list[str] = []
    for name, found in _entries(root, "", folders, faults):
        seen.add(name)
        if name in IGNORED and name not in expected and stat.S_ISREG(found.st_mode):
            continue
        if fault := _judge(name, found, expected.get(name), folders):
            faults.append(fault)
    missing = [path for path in expected if path not in seen and not _below_faulty(path, faults)]
    faults += [f"{path}: expected {expected[path].size} bytes, found no file" for path in missing]
    return sorted(faults)


def _entries(root: Path, below: str, folders: set[str], faults: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Everything in the folders that the manifest knows, never through a link; the rest is named, not entered."""
    try:
        entries = sorted(os.scandir(root / below), key=lambda entry: entry.name)
    except OSError as error:
        faults.append(f"{below or root}: expected a folder, found one that cannot be read: {error.strerror}")
        return
    for entry in entries:
        name = f"{below}/{entry.name}" if below else entry.name
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:  # went away between the listing and the look
            continue
        yield name, found
        if stat.S_ISDIR(found.st_mode) and name in folders:
            yield from _entries(root, name, folders, faults)


def _judge(name: str, found: os.stat_result, pinned: PinnedFile | None, folders: set[str]) -> str | None:
    kind = _kind(found.st_mode)
    if name in folders:
        return None if kind == "a folder" else f"{name}: expected a folder, found {kind}"
    if pinned is None:
        return f"{name}: expected nothing, found {kind}" + (f" of {found.st_size} bytes" if kind == "a file" else "")
    if kind != "a file":
        return f"{name}: expected a file, found {kind}"
    if found.st_size != pinned.size:
        return f"{name}: expected {pinned.size} bytes, found {found.st_size}"
    return None


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def _below_faulty(path: str, faults: list[str]) -> bool:
    """Whether a folder above `path` is already reported: its files need no lines of their own."""
    return any(fault.startswith(f"{parent}: ") for parent in PurePosixPath(path).parents for fault in faults)


def _contents(expected: Expected, root: Path, progress: digests.Progress) -> list[str]:
    names = {root / path: path for path in expected}
    faults: list[str] = []
    for path, found in digests.of_files(names, progress).items():
        name = names[path]
        pinned = expected[name]
        if isinstance(found, digests.Unreadable):
            faults.append(f"{name}: expected sha256 {pinned.sha256}, found a file that {_as_clause(found)}")
        elif (found.size, found.sha256) != (pinned.size, pinned.sha256):
            faults.append(f"{name}: expected sha256 {pinned.sha256}, found {found.sha256}")
    return sorted(faults)


def _as_clause(reason: digests.Unreadable) -> str:
    text = str(reason)
    return f"is {text}" if text.startswith("not ") else text


def _message(manifest: Manifest, root: Path, faults: list[str]) -> str:
    shown = faults[:MAX_LINES]
    if len(faults) > len(shown):
        shown.append(f"… and {len(faults) - MAX_LINES} more")
    head = f"release {manifest.reference} ({manifest.digest[:16]}): the files in {root} are not those of the manifest:"
    advice = (
        f"Do not serve these files. Remove {root}, then run `jubako release fetch {manifest.reference}` to get the "
        "pinned ones again; if the change was meant, it is a new version: `jubako release create`."
    )
    return "\n".join([head, *(f"  {line}" for line in shown), advice])
