"""Every setting of `tessera defrag run`: flag, type, default, variables and help, and the value made from them.

Everything that is wrong comes in one `SettingsError`, and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.services.addresses import Address
from tessera.services.common_settings import ClusterAccess, ListenerLimits
from tessera.services.logs import LOG_SETTINGS, read_log_options
from tessera.services.settings_table import Flags, Group, Setting, Sources, nested, rows_of
from tessera.services.value_types import COUNT, DNS_NAME, DURATION, REQUIRED_ADDRESS, SPAN, SWITCH, optional

LEASE = "tessera-defrag"


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class DefragmenterSettings(ClusterAccess):
    """Everything that the process needs to know."""

    interval: float = Group.PLACEMENT("interval", SPAN, 300.0,
        "Time between two rounds.")
    evictions_per_hour: int = Group.PLACEMENT("evictions-per-hour", COUNT, 10,
        "Evict at most this many pods in any hour, restarts included.")
    patience: float = Group.PLACEMENT("patience", DURATION, 120.0,
        "How long a pod waits before others are moved for it.")
    max_moves: int = Group.PLACEMENT("max-moves", COUNT, 5,
        "Move at most this many pods for one pod or gang that waits.")
    step_timeout: float = Group.PLACEMENT("step-timeout", SPAN, 600.0,
        "Time for one move; its target is held as long.")
    dry_run: bool = Group.PLACEMENT("dry-run", SWITCH, False,
        "Only log the plans: change nothing, not even the Lease.")
    lease_namespace: str | None = Group.LEADER("lease-namespace", optional(DNS_NAME), None,
        "Namespace of the Lease.", env=("POD_NAMESPACE",), default_text="that of the context")
    lease_name: str = Group.LEADER("lease-name", DNS_NAME, LEASE,
        "The Lease that lets one process run, and keeps the record of its evictions.")
    lease_duration: float = Group.LEADER("lease-duration", SPAN, 30.0,
        "After which another process may take a Lease that is not renewed.")
    metrics: Address = Group.OPERATION("metrics-bind-address", REQUIRED_ADDRESS, Address("", 9396),
        "Metrics, /healthz and /readyz.")
    limits: ListenerLimits = nested(ListenerLimits)


# fmt: on


TABLE: tuple[Setting, ...] = (*rows_of(DefragmenterSettings), *LOG_SETTINGS)
"""every flag of `tessera defrag run`"""


def build_settings(flags: Flags, environ: Mapping[str, str]) -> DefragmenterSettings:
    """What the process is told. Raises SettingsError with all problems."""
    sources = Sources(flags, environ)
    settings = sources.load(DefragmenterSettings)
    read_log_options(sources)
    sources.check()
    return settings
