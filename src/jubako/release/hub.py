"""Files from a model hub, at one commit.

Owns the talk with the hub: a branch or tag becomes a commit, only that commit is downloaded, and what arrives is
compared with the sizes and digests the hub declares. `HF_ENDPOINT` and `HF_TOKEN` are honoured. Knows nothing of
manifests' files or of the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jubako.errors import StartupFault
from jubako.release import admissible, digests, staging
from jubako.release.manifest import HubSource

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoSibling

SMALL_BYTES = 64 * 1024 * 1024
"""JSON files above this size are no configuration; refused before they are read into memory."""


def resolve(repository: str, requested: str) -> HubSource:
    """The commit that `requested` (a branch, a tag or a commit) names now. Raises `StartupFault` if there is none."""
    with _translated(repository, requested):
        commit = _hub().model_info(repository, revision=requested).sha
    if not commit or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise StartupFault(f"hub {repository}@{requested}: the hub names no commit for it")
    if re.fullmatch(r"[0-9a-f]{40}", requested) and commit != requested:
        raise StartupFault(f"hub {repository}@{requested}: the hub answered with another commit, {commit}")
    return HubSource(kind="hub", repository=repository, revision=commit, requested=requested)


def fetch(source: HubSource, kind: admissible.Kind, into: Path, downloads: Path) -> None:
    """Put the admissible files of `source` into the folder `into`.

    `downloads` keeps what has arrived until all has, so that a broken download continues. Raises `StartupFault` for
    refused files, for files that differ from what the hub declares, and when the hub does not answer.
    """
    whence = f"hub {source.repository}@{source.revision[:12]}"
    with _translated(source.repository, source.revision):
        found = _hub().model_info(source.repository, revision=source.revision, files_metadata=True)
    if found.sha != source.revision:
        raise StartupFault(f"{whence}: the hub answered with another commit, {found.sha}")
    siblings = {sibling.rfilename: sibling for sibling in found.siblings or []}
    names = admissible.choose(siblings, kind, whence)
    sizes = {name: siblings[name].size or 0 for name in names}
    if large := [name for name in names if name.endswith(".json") and sizes[name] > SMALL_BYTES]:
        raise StartupFault(f"{whence}: too large to be configuration: {', '.join(large)}")
    partial = downloads / f"{source.repository.replace('/', '--')}-{source.revision}"
    partial.mkdir(parents=True, exist_ok=True)
    staging.require_space(partial, sum(sizes.values()) - sum(_present(partial / name) for name in names))
    first = [name for name in names if not name.endswith(".safetensors")]
    _download(source, first, sizes, partial)  # configuration first: a refusal should not cost the weights
    admissible.inspect(partial, first, whence)
    _download(source, [name for name in names if name not in first], sizes, partial)
    _compare(partial, [siblings[name] for name in names], whence)
    admissible.inspect(partial, names, whence)
    for name in names:
        staging.place(partial / name, into / name)
    _discard(partial)


def _download(source: HubSource, names: list[str], sizes: dict[str, int], partial: Path) -> None:
    for name in names:
        with staging.progress(f"download {name}", sizes[name]) as advance, _translated(source.repository, name):
            _hub().hf_hub_download(
                source.repository, name, revision=source.revision, local_dir=partial, tqdm_class=_reporting_to(advance)
            )


def _compare(folder: Path, siblings: list[RepoSibling], whence: str) -> None:
    """Every difference between what arrived and what the hub declares, in one fault; what differs is removed."""
    paths = {folder / sibling.rfilename: sibling for sibling in siblings}
    faults: list[str] = []
    with staging.progress("hash the download", sum(sibling.size or 0 for sibling in siblings)) as advance:
        found = digests.of_files(paths, advance)
    for path, sibling in paths.items():
        digest = found[path]
        if isinstance(digest, digests.Unreadable):
            faults.append(f"{sibling.rfilename}: {digest}")
        elif sibling.size is not None and digest.size != sibling.size:
            faults.append(f"{sibling.rfilename}: the hub declares {sibling.size} bytes, {digest.size} arrived")
        elif sibling.lfs is not None and digest.sha256 != sibling.lfs.sha256:
            faults.append(f"{sibling.rfilename}: the hub declares sha256 {sibling.lfs.sha256}, {digest.sha256} arrived")
        elif sibling.lfs is None and sibling.blob_id and _git_blob_id(path) != sibling.blob_id:
            faults.append(f"{sibling.rfilename}: not the git blob {sibling.blob_id} that the hub declares")
        else:
            continue
        path.unlink(missing_ok=True)
    if faults:
        advice = "Run the command again; if it stays, something between this machine and the hub alters files."
        raise StartupFault("\n".join([*(f"{whence}: {fault}" for fault in faults), advice]))


def _git_blob_id(path: Path) -> str:
    """Git's own name for the file's content, which the hub declares for files outside LFS."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _present(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _discard(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)


def _hub() -> HfApi:
    from huggingface_hub import HfApi

    # Read here and not at the library's import, so that the environment of the moment counts.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="jubako")


def _reporting_to(advance: digests.Progress) -> Any:
    """A stand-in for the hub library's progress bar that only tells us how many bytes came."""
    from tqdm import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": True}))
            advance(int(kwargs.get("initial") or 0))

        def update(self, n: float | None = 1) -> bool | None:
            advance(int(n or 0))
            return None

    return Silent


@contextlib.contextmanager
def _translated(repository: str, what: str) -> Iterator[None]:
    """The hub library's errors, said as `StartupFault`; a full disk stays what it is."""
    from huggingface_hub import errors

    # Whichever HTTP client the library uses: its errors all derive from the parent of the library's own.
    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]

    try:
        yield
    except errors.GatedRepoError:
        raise StartupFault(
            f"hub {repository}: access must be granted first. Ask for it on the model's page, then set HF_TOKEN."
        ) from None
    except errors.RevisionNotFoundError:
        raise StartupFault(f"hub {repository}: no branch, tag or commit {what!r}") from None
    except errors.RepositoryNotFoundError:
        raise StartupFault(f"hub {repository}: no such repository, or HF_TOKEN may not read it") from None
    except errors.HFValidationError as error:
        raise StartupFault(f"hub {repository}: {error}") from None
    except (http_error, errors.EntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise StartupFault(f"hub {repository}: {what}: {first[0]}") from error
