"""`tessera monitor`: how containers use the cards of one node.

Flags are only collected here; `tessera.monitor.settings` says what they mean. The service is imported when it runs, so
that `--help` and mistakes in flags are answered at once.
"""

from __future__ import annotations

import os
from importlib import import_module

import click

from tessera import __version__
from tessera.cli.grouped import GroupedCommand, configured, flags_of_params
from tessera.monitor.settings import TABLE, build_settings
from tessera.services.settings_table import Sources

SERVICE = "tessera.monitor.process"
"""module whose `run(settings)` runs until it is told to stop and returns the exit code"""


def run(**params: str | tuple[str, ...] | None) -> None:
    """Read the configuration and run the monitor with it."""
    import structlog

    from tessera.services.logs import configure_logs, read_log_options

    flags = flags_of_params(TABLE, params)
    settings = configured(lambda: build_settings(flags, os.environ))
    configure_logs(read_log_options(Sources(flags, {})))
    structlog.get_logger(__name__).info("starting", version=__version__, node=settings.node_name)
    click.get_current_context().exit(import_module(SERVICE).run(settings))


command = GroupedCommand(
    "monitor",
    callback=run,
    table=TABLE,
    help="""Show how containers use the cards of one node, and let those of higher priority go first.

    Takes the flags and variables of HAMi's vGPUmonitor: its container starts with only image and command changed. A
    flag wins over its variable (in brackets). Folders of containers whose pods are gone are removed.
    """,
    epilog="""\b
    Environment: KUBECONFIG, HOME, and those in brackets.

    \b
    Examples:
      tessera monitor
          in a DaemonSet that sets NODE_NAME and HOOK_PATH
      tessera monitor --node-name n1 --hook-path /usr/local/vgpu --metrics-bind-address 127.0.0.1:9394
          on a workstation
    """,
)
