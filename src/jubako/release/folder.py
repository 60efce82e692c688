"""Files from a folder somebody has at hand: the same refusals as for any other source.

Owns the copy. Links are followed only to regular files, since model caches are full of them.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from jubako.errors import StartupFault
from jubako.release import admissible, staging


def fetch(folder: Path, kind: admissible.Kind, into: Path) -> None:
    """Copy the admissible files of `folder` into `into`. Raises `StartupFault` for what is refused."""
    if not folder.is_dir():
        raise StartupFault(f"{folder}: expected a folder with the {kind}'s files")
    whence = f"folder {folder}"
    names = admissible.choose(
        (str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if not path.is_dir()), kind, whence
    )
    odd = [name for name in names if not (folder / name).is_file()]
    if odd:
        raise StartupFault("\n".join(f"{whence}: {name}: not a regular file" for name in odd))
    admissible.inspect(folder, names, whence)
    sizes = {name: (folder / name).stat().st_size for name in names}
    into.mkdir(parents=True, exist_ok=True)
    staging.require_space(into, sum(sizes.values()))
    for name in names:
        with staging.progress(f"copy {name}", sizes[name]) as advance:
            _copy(folder / name, into / name)
            advance(sizes[name])


def _copy(source: Path, target: Path) -> None:
    """Copy contents only. No hard link: the folder's owner may change the file later, the store's must not change."""
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM) and not os.access(source, os.R_OK):
            raise StartupFault(f"{source}: cannot be read: {error.strerror}") from None
        raise
