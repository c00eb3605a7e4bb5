"""A click group that imports its commands only when they are needed.

The list of commands is printed from the summaries in the table; no command is imported for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import click

PROGRAM = "tessera"
EXAMPLE = re.compile(rf"^( *){PROGRAM} ", re.MULTILINE)
"""the beginning of an example in an epilog"""


class LazyCommand(NamedTuple):
    """Where a command lives and what the list of commands says about it."""

    target: str
    """`package.module:attribute`"""
    summary: str
    needs: str = ""
    """a package that the command needs and that an installation may leave out"""

    @property
    def is_installed(self) -> bool:
        return not self.needs or find_spec(self.needs) is not None


class NamedEpilog(click.Command):
    """A command whose examples name the program as it was called: `tessera`, or `kubectl tessera`."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        program = ctx.find_root().info_name or ""
        original = self.epilog
        if original and program.endswith(f" {PROGRAM}"):
            self.epilog = EXAMPLE.sub(rf"\1{program} ", original)
        try:
            super().format_epilog(ctx, formatter)
        finally:
            self.epilog = original


class LazyGroup(NamedEpilog, click.Group):
    """A group of commands that are loaded on first use."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._installed())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.lazy.get(cmd_name)
        if found is None:
            return None
        if not found.is_installed:
            raise click.UsageError(
                f"'{cmd_name}' is not part of this installation. It comes with the sources of Tessera:"
                " clone the repository, run `pip install --editable .` there and try again.",
                ctx,
            )
        module, _, attribute = found.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{found.target} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does it, but from the table instead of the loaded commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in sorted(self._installed().items())])

    def _installed(self) -> dict[str, LazyCommand]:
        return {name: command for name, command in self.lazy.items() if command.is_installed}
