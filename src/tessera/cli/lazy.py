"""A click group that imports its commands only when they are needed.

The list of commands is shown from the summaries in the table; nothing is imported for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """Where a command lives and what the list of commands says about it."""

    target: str
    """`package.module:attribute`"""
    summary: str


class LazyGroup(click.Group):
    """A group of commands that are loaded on first use."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand] = MappingProxyType({}), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.lazy[cmd_name].target} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does it, but from the table instead of the loaded commands."""
        if not self.lazy:
            return super().format_commands(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.lazy[name].summary) for name in sorted(self.lazy)])
