"""`tessera monitor`: use of cards by container, on one node.

Flags are only collected here; `tessera.monitor.options` says what they mean. The service is imported when it runs, so
that `--help` and mistakes in flags are answered at once.
"""

from __future__ import annotations

import os
from importlib import import_module

import click

from tessera import __version__
from tessera.cli.grouped import BadConfiguration, GroupedCommand, flags_of_params
from tessera.monitor.flags import FLAGS, Group

SERVICE = "tessera.monitor.process"
"""module whose `run(settings)` runs until it is told to stop and returns the exit code"""


def run(**params: str | tuple[str, ...] | None) -> None:
    """Read the configuration and run the monitor with it."""
    import structlog

    from tessera.monitor import options
    from tessera.services.logs import configure_logs

    flags = flags_of_params(FLAGS, params)
    try:
        settings = options.build_settings(flags, os.environ)
    except options.OptionsError as error:
        raise BadConfiguration(str(error)) from error
    configure_logs(options.log_options(flags))
    structlog.get_logger(__name__).info("starting", version=__version__, node=settings.node_name)
    click.get_current_context().exit(import_module(SERVICE).run(settings))


command = GroupedCommand(
    "monitor",
    callback=run,
    flags=FLAGS,
    groups=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
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
