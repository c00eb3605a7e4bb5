"""From flags, environment and files to `Settings`: reads the table and applies the rules between settings.

A flag wins over the environment, which wins over the default; flags of HAMi v2.4 win over the device configuration.
Pure: files come through `read_file`. Everything that is wrong comes in one `SettingsError`, and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.scheduler.configuration.device_sections import names_ascend, read_device_sections
from tessera.scheduler.configuration.legacy_flags import IGNORED
from tessera.scheduler.configuration.listeners import read_listeners_and_tls
from tessera.scheduler.settings import LeaderElectionFlags, Leadership, Settings
from tessera.services.common_settings import PRINT_CONFIG
from tessera.services.logs import read_log_options
from tessera.services.settings_table import Flags, ReadFile, Sources

DEFAULT_BURST = 10
"""requests, as in HAMi; only where --kube-qps sets a limit"""


def build_settings(flags: Flags, environ: Mapping[str, str], read_file: ReadFile) -> Settings:
    """What the service is told. Raises SettingsError with all problems."""
    sources = Sources(flags, environ)
    listeners, tls = read_listeners_and_tls(sources)
    settings = sources.load(Settings, listeners=listeners, tls=tls, leadership=_read_leadership(sources))
    if settings.kube_qps and "kube-burst" not in sources:
        settings = replace(settings, kube_burst=DEFAULT_BURST)
    if "enable-ascend" not in sources:
        settings = replace(settings, enable_ascend=names_ascend(sources))
    settings = replace(settings, device_sections=read_device_sections(sources, settings, read_file))
    if settings.turn_s >= settings.reservation_s:
        sources.blame("turn-timeout", "a bind must not wait longer than its reservation lasts (--reservation-timeout)")
    if settings.dra_convert and not settings.dra:
        sources.blame("dra-convert", "needs --dra, or no claim that it makes would be allocated")
    # Problems with these count as well, though they set nothing here.
    for each in (*IGNORED, PRINT_CONFIG):
        sources.read(each)
    read_log_options(sources)
    sources.check()
    return settings


def _read_leadership(sources: Sources) -> Leadership | None:
    flags = sources.load(LeaderElectionFlags)
    if not flags.is_wanted:
        return None
    namespace = flags.namespace or sources.environ.get("POD_NAMESPACE", "")
    identity = sources.environ.get("HOSTNAME") or sources.environ.get("POD_NAME", "")
    if not flags.name:
        sources.blame("leader-elect", "needs --leader-elect-resource-name, the Lease of the kube-scheduler beside it")
    if not namespace:
        sources.blame("leader-elect", "needs --leader-elect-resource-namespace where POD_NAMESPACE is not set")
    if not identity:
        sources.blame("leader-elect", "needs the host's name in HOSTNAME, to know its kube-scheduler by")
    return Leadership(namespace, flags.name, identity)
