"""`jubako serve` and `jubako config`: checks with plain messages, then `bentoml serve` in place of this process."""

from __future__ import annotations

import math
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

import click

from jubako import settings
from jubako.engine import options as engine_options
from jubako.errors import StartupFault
from jubako.gate.authentication import ensure_key, read_key
from jubako.release import catalogue
from jubako.settings import ADDRESS_VARIABLE, Settings

SERVICE = "service:Jubako"
KEEP_ALIVE_SECONDS = 75
"""Above the idle time of common clients and load balancers (60 s), so that they close first and never meet a reset."""

project_option = click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path(),
    show_default="the current folder",
    help="The folder that holds service.py and configuration/.",
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="Port to listen on.")
@project_option
def serve(host: str, port: int, project: Path) -> None:
    """Serve the release of configuration/server.yaml; make an API key on first use."""
    root = project.resolve()
    if not (root / "service.py").is_file():
        raise StartupFault(f"{root} has no service.py. Run this in the project's folder or name it with --project.")
    loaded = _check(root)
    # Made only where nothing is mounted: a path outside the project that does not exist is a mistake, not a wish.
    if loaded.key_file.is_relative_to(root) and ensure_key(loaded.key_file):
        click.echo(f"jubako: made a new API key: {loaded.key_file}", err=True)
    read_key(loaded.key_file)
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
@project_option
def check(project: Path) -> None:
    """Check server.yaml, the engine profile, the environment and the manifest; report every fault at once."""
    loaded = _check(project.resolve())
    click.echo(f"{loaded.configuration}: no faults")


@config.command()
@project_option
def explain(project: Path) -> None:
    """Print every setting in force."""
    click.echo(settings.explain(settings.load(project.resolve())))


def _check(root: Path) -> Settings:
    loaded = settings.load(root)
    faults = []
    release = loaded.server.release
    for step in (
        lambda: engine_options.check(loaded.engine_options, loaded.profile.environment),
        lambda: catalogue.load(loaded.configuration, f"{release.name}/{release.version}"),
    ):
        try:
            step()
        except StartupFault as fault:
            faults.append(str(fault))
    if faults:
        raise StartupFault("\n".join(faults))
    return loaded


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
