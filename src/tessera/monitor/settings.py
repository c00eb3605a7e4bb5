"""Every setting of `tessera monitor`: flag, type, default, variables and help, and the value made from them.

Everything that is wrong comes in one `SettingsError`, and nothing is started; only a bad HAMI_RESYNC_INTERVAL is a
warning, as it is for HAMi. What the agent has as well is in `services.common_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tessera.services.common_settings import (
    LOG_SETTINGS,
    ClusterAccess,
    ListenerLimits,
    NodeServiceSettings,
    read_log_options,
)
from tessera.services.settings_table import Flags, Group, Setting, Sources, nested, rows_of, setting, shared
from tessera.services.value_types import DIRECTORY, REQUIRED_ADDRESS, SPAN, SWITCH, Address


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings(ClusterAccess):
    """Everything that the monitor needs to know."""

    node_name: str = shared(NodeServiceSettings, "node_name")
    base: Path = setting(Group.FOLDERS, "hook-path", DIRECTORY, Path("/"),
        "The folder that holds `containers`, as a rule /usr/local/vgpu.", env=("HOOK_PATH",),
        needed="a DaemonSet sets HOOK_PATH")
    driver_root: Path = shared(NodeServiceSettings, "driver_root_here")
    """without such a folder the linker looks for the driver"""
    resync: float = setting(Group.FOLDERS, "resync-interval", SPAN, 300.0,
        "How long the folder of an unknown pod stays.", env=("HAMI_RESYNC_INTERVAL",), env_warns=True)
    metrics: Address = setting(Group.OPERATION, "metrics-bind-address", REQUIRED_ADDRESS, Address("", 9394),
        "Metrics, /healthz and /readyz.")
    limits: ListenerLimits = nested(ListenerLimits)
    legacy_metrics: bool = setting(Group.OPERATION, "legacy-metrics", SWITCH, False,
        "Show the names of HAMi up to v2.8 as well.")
    warnings: tuple[str, ...] = ()


# fmt: on


TABLE: tuple[Setting, ...] = (*rows_of(MonitorSettings), *LOG_SETTINGS)
"""every flag of `tessera monitor`"""


def build_settings(flags: Flags, environ: Mapping[str, str]) -> MonitorSettings:
    """What the monitor is told. Raises SettingsError with all problems."""
    sources = Sources(flags, environ)
    settings = sources.load(MonitorSettings)
    read_log_options(sources)
    sources.check()
    return replace(settings, warnings=tuple(sources.warnings))
