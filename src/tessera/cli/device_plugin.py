"""`tessera device-plugin`: the agent of a GPU node.

Flags are only collected here; `tessera.node.configuration.options` says what they mean. The service is imported when
it runs, so that `--help` and mistakes in flags are answered at once.
"""

from __future__ import annotations

import os
from importlib import import_module

import click

from tessera import __version__
from tessera.cli.grouped import GroupedCommand, configured, flags_of_params, read_file, wants_print
from tessera.node.settings import TABLE, Configuration
from tessera.services.settings_table import Group, Sources, given_in

SERVICE = "tessera.node.process"
"""module whose `run(configuration, reload)` runs until it is told to stop and returns the exit code"""

DEGRADED = 2
"""exit code of --print-config where the agent would serve, but not with what the files should say"""


def run(**params: str | tuple[str, ...] | None) -> None:
    """Read the configuration, and print it or run the agent with it."""
    import structlog

    from tessera.node.configuration import dump, options
    from tessera.services.logs import configure_logs, read_log_options

    flags = flags_of_params(TABLE, params)

    def read() -> Configuration:
        return options.build_configuration(flags, os.environ, read_file)

    configuration = configured(read)
    context = click.get_current_context()
    if wants_print(flags):
        click.echo(dump.print_configuration(configuration), nl=False)
        for text in (*configuration.faults, *configuration.warnings):
            click.echo(f"Warning: {text}", err=True)
        context.exit(DEGRADED if configuration.faults else 0)
    configure_logs(read_log_options(Sources(flags, {})))
    structlog.get_logger(__name__).info(
        "starting",
        version=__version__,
        settings=dump.changes(configuration),
        ignored=given_in(Group.IGNORED, TABLE, flags),
    )
    context.exit(import_module(SERVICE).run(configuration, read))


command = GroupedCommand(
    "device-plugin",
    callback=run,
    table=TABLE,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=lambda context, _option, wanted: _say_version(context, wanted),
            help="Show the version and exit.",
        )
    ],
    help="""Serve the GPUs of one node: find and register them, and give every container exactly its slice.

    Understands the flags, variables and files of HAMi's device plugin as well: its DaemonSet starts with only image and
    command changed. How cards are shared: the node's entry in config.json wins over section nvidia of
    device-config.yaml, which wins over flags. Everything else: a flag wins over its variable (in brackets), which wins
    over section flags of device-config.yaml. Files are read again when they change and on SIGHUP; while config.json is
    broken its last good text holds, and a device-config.yaml that became bad changes nothing.
    """,
    epilog="""\b
    Environment: KUBECONFIG, HOME, DP_DISABLE_HEALTHCHECKS, DP_ENABLE_HEALTHCHECKS, and those in brackets.

    \b
    Examples:
      tessera device-plugin --config-file /device-config.yaml
          in a DaemonSet that sets NODE_NAME
      tessera device-plugin --config-file=/device-config.yaml --mig-strategy=none --disable-core-limit=false -v=4
          as HAMi's chart starts its plugin
      tessera device-plugin --node-name n1 --simulate cards.yaml --plugin-dir ./kubelet --state-dir ./state
          cards that a file describes, on a machine without any
      tessera device-plugin --node-name n1 --config-file device-config.yaml --print-config
          check a configuration without starting anything
    """,
)


def _say_version(context: click.Context, wanted: bool) -> None:
    if wanted:
        click.echo(f"tessera device-plugin {__version__}")
        context.exit()
