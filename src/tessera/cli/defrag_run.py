"""`tessera defrag run`: moves pods on a schedule, for pods and gangs that wait.

Flags are only collected here; `tessera.maintenance.defragmenter.settings` says what they mean.
"""

from __future__ import annotations

import os

from tessera.cli.grouped import GroupedCommand, configured, flags_of_params, run_service
from tessera.maintenance.defragmenter.settings import TABLE, build_settings

SERVICE = "tessera.maintenance.defragmenter.process"
"""module whose `run(settings)` runs until it is told to stop and returns the exit code"""


def run(**params: str | tuple[str, ...] | None) -> None:
    """Read the configuration and run the process with it."""
    flags = flags_of_params(TABLE, params)
    settings = configured(lambda: build_settings(flags, os.environ))
    run_service(SERVICE, settings, flags=flags, dry_run=settings.dry_run)


command = GroupedCommand(
    "run",
    callback=run,
    table=TABLE,
    help="""Move pods on a schedule, so that pods and gangs fit that wait for devices.

    Every round takes the pods and gangs that have waited for longest, the highest priority first, plans the fewest
    moves after which each fits, and makes them as `tessera defrag apply` does. What is gained is held for the pod that
    waits. Pods of a higher priority than that pod stay. Nothing is moved if none that waits gains by it.
    """,
    epilog="""\b
    Environment: KUBECONFIG, HOME, and those in brackets.

    \b
    Examples:
      tessera defrag run --dry-run
          log what would be moved, and change nothing
      tessera defrag run --interval 5m --evictions-per-hour 10
          at most ten evictions in any hour; the chart runs this with scheduler.defrag.enabled

    \b
    Exit codes:
      0  stopped by a signal
      1  a fault, which the log names
      2  not started: no access, wrong flags
    """,
)
