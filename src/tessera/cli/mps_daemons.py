"""`tessera mps-daemons`: MPS control daemons that outlive the node agent's container."""

from __future__ import annotations

import os

from tessera.cli.grouped import GroupedCommand, configured, flags_of_params, run_service
from tessera.node.settings import Paths
from tessera.services.logs import LOG_SETTINGS, read_log_options
from tessera.services.settings_table import Sources, row_of

SERVICE = "tessera.node.modes.mps.launcher"
"""module whose `run(root, environ)` runs until it is told to stop and returns the exit code"""

ROOT = row_of(Paths, "mps")
TABLE = (ROOT, *LOG_SETTINGS)


def run(**params: str | tuple[str, ...] | None) -> None:
    """Start daemons as the agent asks for them."""
    flags = flags_of_params(TABLE, params)

    def read() -> Sources:
        sources = Sources(flags, os.environ)
        sources.read(ROOT)
        read_log_options(sources)
        sources.check()
        return sources

    root = configured(read).read(ROOT)
    run_service(SERVICE, root, dict(os.environ), flags=flags, folder=str(root))


command = GroupedCommand(
    "mps-daemons",
    callback=run,
    table=TABLE,
    help="""Start MPS control daemons for the agent of this node, so that they outlive its container.

    Goes with `tessera device-plugin --external-mps-daemons`, which decides when a daemon is needed and when it ends.
    Both need the host's process ids and the same directory of pipes. When this process ends, the daemons run on,
    unless the container runtime ends them with its container.
    """,
    epilog="""\b
    Examples:
      tessera mps-daemons
          in a DaemonSet with hostPID and updateStrategy OnDelete
    """,
)
