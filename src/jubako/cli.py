"""The command `jubako`.

Owns which commands there are and how a fault becomes an exit status: 0 done, 1 a fault with its message on stderr,
2 wrong usage. Every command is imported only when it is run, so that help and completion are quick.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import cast

import click

from jubako import __version__
from jubako.errors import StartupFault

COMMANDS: Mapping[str, tuple[str, str]] = {
    "audit": ("jubako.books.commands:audit", "Verify the audit's chain of lines."),
    "config": ("jubako.serve_command:config", "Check and explain the settings."),
    "keys": ("jubako.keys_command:keys_group", "Make, list, revoke and replace API keys."),
    "openapi": ("jubako.openapi_command:openapi", "Print the API as an OpenAPI document."),
    "release": ("jubako.release.commands:release", "Create, fetch, verify and show pinned model releases."),
    "serve": ("jubako.serve_command:serve", "Serve the release of configuration/server.yaml."),
    "usage": ("jubako.books.commands:usage", "Show what tenants used."),
}
"""Name -> where the command is, and the one line that `--help` shows without importing it."""


class LateGroup(click.Group):
    """A group that knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, without importing anything."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return cast("click.Command", getattr(importlib.import_module(module), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, from the lines above."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LateGroup)
@click.version_option(__version__, prog_name="jubako")
def jubako() -> None:
    """One pinned open-weights model, served with vLLM behind a boundary one can rely on."""


def main() -> None:
    """Run the command line and exit."""
    os.environ.setdefault("BENTOML_DO_NOT_TRACK", "True")
    try:
        jubako(prog_name="jubako")
    except StartupFault as fault:
        click.echo(f"jubako: {fault}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
