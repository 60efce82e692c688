"""`jubako serve` and `jubako config`: checks with plain messages, then `bentoml serve` in place of this process."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click

from jubako import settings
from jubako.engine import options as engine_options
from jubako.errors import StartupFault
from jubako.gate import demo, key_sets, keys, tenants
from jubako.project import configured_project_option, project_option, root_of
from jubako.release import catalogue
from jubako.settings import ADDRESS_VARIABLE, Settings

SERVICE = "service:Jubako"
KEEP_ALIVE_SECONDS = 75
"""Above the idle time of common clients and load balancers (60 s), so that they close first and never meet a reset."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="Port to listen on.")
@project_option
def serve(host: str, port: int, project: Path) -> None:
    """Serve the release of configuration/server.yaml; make API keys on first use."""
    root = project.resolve()
    if not (root / "service.py").is_file():
        raise StartupFault(f"{root} has no service.py. Run this in the project's folder or name it with --project.")
    loaded = _check(root)
    for path in demo.ensure(root, loaded.keys_file, tenants.of(loaded, None), datetime.now(UTC)):
        click.echo(f"jubako: made a new API key: {path}", err=True)
    keys.load(loaded.keys_file)
    _check_address(host, port)
    life = loaded.server.life
    graceful = math.ceil(life.drain_seconds + life.close_seconds) + 10
    os.chdir(root)
    os.environ[ADDRESS_VARIABLE] = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    sys.stderr.flush()
    _exec(
        [
            *(sys.executable, "-m", "bentoml", "serve", SERVICE, "--host", host, "--port", str(port)),
            *("--timeout-keep-alive", str(KEEP_ALIVE_SECONDS), "--timeout-graceful-shutdown", str(graceful)),
        ]
    )


@click.group()
def config() -> None:
    """Check and explain the settings."""


@config.command()
@configured_project_option
def check(project: Path | None) -> None:
    """Check settings, environment, manifest, tenants and keys; report every fault at once."""
    loaded = _check(root_of(project))
    click.echo(f"{loaded.configuration}: no faults")


@config.command()
@configured_project_option
def explain(project: Path | None) -> None:
    """Print every setting in force."""
    click.echo(settings.explain(settings.load(root_of(project))))


def _check(root: Path) -> Settings:
    loaded = settings.load(root)
    faults: list[str] = []
    release = loaded.server.release
    with _gathered(faults):
        engine_options.check(loaded.engine_options, loaded.profile.environment)
    served = None
    with _gathered(faults):
        manifest = catalogue.load(loaded.configuration, f"{release.name}/{release.version}")
        served = frozenset([*manifest.aliases, *(adapter.alias for adapter in manifest.adapters)])
    with _gathered(faults):
        tenants.of(loaded, served)
    with _gathered(faults):
        if loaded.keys_file.exists():
            keys.load(loaded.keys_file)
    jwt = loaded.server.authentication.jwt
    with _gathered(faults):
        if jwt is not None and "://" not in jwt.jwks:
            path = loaded.root / Path(jwt.jwks).expanduser()
            key_sets.parse(key_sets.read(path), str(path))
    if faults:
        raise StartupFault("\n".join(faults))
    return loaded


@contextmanager
def _gathered(faults: list[str]) -> Iterator[None]:
    """Keep a fault of the block for later, when all are told."""
    try:
        yield
    except StartupFault as fault:
        faults.append(str(fault))


def _check_address(host: str, port: int) -> None:
    """Bind once and let go: BentoML's own message for a taken port is a traceback, after it has touched its files."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            advice = "Stop the other program or choose another port: make serve PORT=…, jubako serve --port …."
            raise StartupFault(f"cannot listen on {host}:{port}: {error.strerror or error}. {advice}") from None


def _exec(command: list[str]) -> NoReturn:
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted
