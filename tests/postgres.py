"""A PostgreSQL of the tests' own: a new cluster in a temporary folder, on a Unix socket and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "correct-horse-battery"
USER = "jubako"


@dataclass
class Postgres:
    """A cluster that can be stopped and started again."""

    binaries: Path
    folder: Path
    account: str | None
    """The user that runs it: PostgreSQL refuses to be run by root."""

    @property
    def url(self) -> str:
        """How the ledger is told of it."""
        return f"postgresql+psycopg://{USER}@/postgres?host={self.folder}"

    @property
    def password_file(self) -> Path:
        """Where its password is."""
        return self.folder / "password"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of its programs to the end."""
        done = subprocess.run(
            [str(self.binaries / program), *arguments],
            user=self.account,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would be inherited by the server, and never end
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off"
        options += " -c dynamic_shared_memory_type=mmap"  # nothing of it in /dev/shm, which tests look at
        log = str(self.folder / "log")
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """Stop it as a crash would."""
        self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", "immediate", "stop")


def binaries() -> Path | None:
    """Where PostgreSQL's programs are, the newest of them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parents[1].name))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return Path(named).parent if named else None


@contextmanager
def running() -> Iterator[Postgres]:
    """A started cluster; skips the test where PostgreSQL is not installed, unless nothing may be skipped."""
    programs = binaries()
    if programs is None:
        if os.environ.get("JUBAKO_TESTS_SKIP_NOTHING") == "1":
            pytest.fail("PostgreSQL is not installed, and JUBAKO_TESTS_SKIP_NOTHING is set")
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="jubako-postgres-"))
    account = "nobody" if os.geteuid() == 0 else None
    cluster = Postgres(programs, folder, account)
    cluster.password_file.write_text(PASSWORD + "\n")
    if account is not None:
        for path in (folder, cluster.password_file):
            shutil.chown(path, account)
    try:
        pwfile = f"--pwfile={cluster.password_file}"
        cluster.run("initdb", "-D", str(folder / "data"), "-U", USER, "-E", "UTF8", "-N", "-A", "scram-sha-256", pwfile)
        cluster.start()
        yield cluster
        cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
