"""The option by which the command line is told of a project's folder."""

from __future__ import annotations

import os
from pathlib import Path

import click

from jubako.errors import StartupFault

CONFIGURATION_VARIABLE = "JUBAKO_CONFIGURATION"

project_option = click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path(),
    show_default="the current folder",
    help="The folder that holds service.py and configuration/.",
)
configured_project_option = click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=None,
    show_default=f"the folder that holds ${CONFIGURATION_VARIABLE}, or the current one",
    help="The folder that holds configuration/.",
)


def root_of(project: Path | None) -> Path:
    """The project's folder, absolute; where none was named, that of the variable which `jubako release` follows."""
    if project is not None:
        return project.resolve()
    configuration = os.environ.get(CONFIGURATION_VARIABLE)
    if not configuration:
        return Path.cwd()
    folder = Path(configuration).resolve()
    if folder.name != "configuration":
        raise StartupFault(
            f"{CONFIGURATION_VARIABLE}={configuration}: settings are read from a folder called configuration; "
            "name the project's folder with --project"
        )
    return folder.parent
