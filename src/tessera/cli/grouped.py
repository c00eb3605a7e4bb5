"""A command made from a table of flags: options under headings, and one message for everything that is wrong.

Shared by the services' commands. Flags are only collected; what they mean is decided by the service's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import click

from tessera.services.flags import Flag, Kind

MAX_BYTES = 2**20 + 1
"""of a file; one more than the reader accepts, so that it can say that there is too much"""


class BadConfiguration(click.ClickException):
    """One message with everything that is wrong; exit code 2, as for wrong flags."""

    exit_code = 2

    def __init__(self, problems: str) -> None:
        super().__init__(
            "the configuration cannot be used\n" + "\n".join(f"  {line}" for line in problems.splitlines())
        )


class GroupedCommand(click.Command):
    """A command whose options are shown under the values of `groups`, in their order."""

    def __init__(self, *args: Any, flags: Sequence[Flag], groups: type[Enum], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*(option(flag) for flag in flags), *self.params]
        self._flags = flags
        self._groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for group in self._groups:
            rows = [records.pop(flag.dest) for flag in self._flags if flag.group is group]
            with formatter.section(group.value):
                formatter.write_dl([row for row in rows if row], col_max=34)
        with formatter.section("Help"):
            formatter.write_dl([row for row in records.values() if row], col_max=34)


def option(flag: Flag) -> click.Option:
    names = [f"--{name}" for name in (flag.name, *flag.aliases)] + ([f"-{flag.short}"] if flag.short else [])
    env = f" [{', '.join(flag.env)}]" if flag.env else ""
    how: dict[str, Any] = {"metavar": flag.metavar, "help": f"{flag.help}{env}", "hidden": flag.hidden}
    if flag.kind is Kind.SWITCH:
        # With a value only behind `=`, or with none, as Go's flags are written.
        how |= {"is_flag": False, "flag_value": "true"}
    return click.Option([*names, flag.dest], multiple=flag.kind is Kind.REPEATED, default=None, **how)


def flags_of_params(
    flags: Sequence[Flag], params: Mapping[str, str | tuple[str, ...] | None]
) -> dict[str, str | tuple[str, ...]]:
    """What was written behind each flag that was given."""
    return {flag.name: value for flag in flags if (value := params[flag.dest]) is not None and value != ()}


def read_file(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(MAX_BYTES).decode()
