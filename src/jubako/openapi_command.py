"""`jubako openapi`: the API's document under the limits of a project's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import click

from jubako import settings
from jubako.boundary import openapi as description


@click.command()
@click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path(),
    show_default="the current folder",
    help="The folder that holds configuration/.",
)
def openapi(project: Path) -> None:
    """Print the API as an OpenAPI document, with the limits in force."""
    limits = settings.load(project.resolve()).server.limits.limits
    click.echo(json.dumps(description.document(limits), indent=2))
