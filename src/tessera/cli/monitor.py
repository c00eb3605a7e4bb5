"""`tessera monitor`: how containers use the cards of one node.

Flags are only collected here; `tessera.monitor.settings` says what they mean.
"""

from __future__ import annotations

import os

from tessera.cli.grouped import GroupedCommand, configured, flags_of_params, run_service
from tessera.monitor.settings import TABLE, build_settings

SERVICE = "tessera.monitor.process"
"""module whose `run(settings)` runs until it is told to stop and returns the exit code"""


def run(**params: str | tuple[str, ...] | None) -> None:
    """Read the configuration and run the monitor with it."""
    flags = flags_of_params(TABLE, params)
    settings = configured(lambda: build_settings(flags, os.environ))
    run_service(SERVICE, settings, flags=flags, node=settings.node_name)


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
