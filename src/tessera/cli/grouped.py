"""A command made from a table of settings: options under headings, and one message for everything that is wrong.

Shared by the services' commands. Flags are only collected here; each service's configuration decides what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any, TypeVar

import click

from tessera import __version__
from tessera.services.common_settings import PRINT_CONFIG
from tessera.services.settings_table import Flags, Group, Setting, SettingsError, Sources
from tessera.services.value_types import FlagKind

T = TypeVar("T")


class BadConfiguration(click.ClickException):
    """One message with everything that is wrong; exit code 2, as for wrong flags."""

    exit_code = 2

    def __init__(self, problems: str) -> None:
        super().__init__(
            "the configuration cannot be used\n" + "\n".join(f"  {line}" for line in problems.splitlines())
        )


class GroupedCommand(click.Command):
    """A command whose options are the settings of a table, shown under the headings of their groups."""

    def __init__(self, name: str, *, table: Sequence[Setting], **kwargs: Any) -> None:
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
        super().__init__(name, context_settings=names, **kwargs)
        self.params = [*(option(setting) for setting in table), *self.params]
        self._table = table

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for group in Group:
            rows = [records.pop(setting.dest) for setting in self._table if setting.group is group]
            if rows:
                with formatter.section(group.value):
                    formatter.write_dl([row for row in rows if row], col_max=34)
        with formatter.section("Help"):
            formatter.write_dl([row for row in records.values() if row], col_max=34)


def option(setting: Setting) -> click.Option:
    kind = setting.type.kind
    names = [f"--{name}" for name in setting.names] + ([f"-{setting.short}"] if setting.short else [])
    how: dict[str, Any] = {"metavar": setting.type.metavar, "help": setting.help_text, "hidden": setting.hidden}
    if kind is FlagKind.SWITCH:
        # With a value only behind `=`, or with none, as Go's flags are written.
        how |= {"is_flag": False, "flag_value": "true"}
    return click.Option([*names, setting.dest], multiple=kind in (FlagKind.LIST, FlagKind.SET), default=None, **how)


def flags_of_params(table: Sequence[Setting], params: Mapping[str, str | tuple[str, ...] | None]) -> Flags:
    """What was written behind each flag that was given."""
    return {each.flag: value for each in table if (value := params[each.dest]) is not None and value != ()}


def configured(read: Callable[[], T]) -> T:
    """The configuration; a wrong one ends the command."""
    try:
        return read()
    except SettingsError as error:
        raise BadConfiguration(str(error)) from error


def wants_print(flags: Flags) -> bool:
    """Whether the configuration is only to be printed."""
    return bool(Sources(flags, {}).read(PRINT_CONFIG))


def run_service(service: str, *arguments: object, flags: Flags, **facts: object) -> None:
    """Run the module `service` until it is told to stop, with logs as the flags say, and exit with its code. The
    service is imported here, so that `--help` and mistakes in flags are answered at once."""
    import structlog

    from tessera.services.common_settings import read_log_options
    from tessera.services.logs import configure_logs

    # An exception is printed after the last line of the log.
    with closing(configure_logs(read_log_options(Sources(flags, {})))):
        structlog.get_logger(__name__).info("starting", version=__version__, **facts)
        code = import_module(service).run(*arguments)
    click.get_current_context().exit(code)


def read_file(path: str) -> str:
    """Raises OSError and UnicodeError."""
    from tessera.files import reader
    from tessera.wire.config_file import MAX_BYTES

    return reader.read_file(path, limit=MAX_BYTES).decode()
