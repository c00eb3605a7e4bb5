"""Settings in words: for `--print-config`, and for the one line that is logged at start.

Every setting appears under the name of the flag that sets it, spelled as the flag accepts it. Device sections are
printed as device-config.yaml has them, so that they can be used as such a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from tessera.scheduler.configuration.device_sections import chart_sections
from tessera.scheduler.settings import SelfManaged, Settings, TlsFiles
from tessera.services.addresses import Address
from tessera.services.durations import format_duration
from tessera.services.flag_values import NONE
from tessera.wire.device_config import dump_device_config

SCHEDULER = "scheduler"
"""key of what is not device configuration"""

_HEAD = "# The effective configuration, good as a --device-config-file too: the part `scheduler` is not read there.\n"
_REST = "\n# What flags and environment set, under the names of the flags.\n"


def print_settings(settings: Settings) -> str:
    """The effective configuration as YAML."""
    sections = chart_sections() if settings.device_sections is None else settings.device_sections
    rest = yaml.safe_dump({SCHEDULER: describe(settings)}, sort_keys=False, width=120, allow_unicode=True)
    return f"{_HEAD}{dump_device_config(sections)}{_REST}{rest}"


def changes(settings: Settings) -> dict[str, Any]:
    """What differs from the defaults. Device sections are not listed: `--print-config` has them."""
    usual = describe(Settings())
    return {name: value for name, value in describe(settings).items() if usual.get(name) != value}


def describe(settings: Settings) -> dict[str, Any]:
    """Everything but the device sections, by flag."""
    s = settings
    return {
        "kubeconfig": s.kubeconfig or "",
        "context": s.context or "",
        "kube-qps": s.kube_qps or 0,
        "kube-burst": s.kube_burst or 0,
        "kube-timeout": format_duration(s.kube_timeout),
        **dict(_listeners(s)),
        **dict(_tls(s)),
        "scheduler-name": s.scheduler_name,
        "force-overwrite-default-scheduler": s.force_overwrite_default_scheduler,
        "privileged": s.privileged.value,
        "inject-identity": s.injects_identity,
        "hook-path": s.hook_path,
        "allow-disable-control": s.allow_disable_control,
        "trusted-user": sorted(s.trusted_users),
        "node-scheduler-policy": s.policies.node,
        "gpu-scheduler-policy": s.policies.device,
        "node-label-selector": ",".join(f"{key}={value}" for key, value in sorted(s.node_selector.items())),
        "reservation-timeout": format_duration(s.reservation_seconds),
        "turn-timeout": format_duration(s.turn_seconds),
        "node-lock": s.node_lock.value,
        "node-lock-timeout": format_duration(s.node_lock_seconds),
        "device-config-file": s.device_config_file,
        "enable-ascend": s.switches.ascend,
        "enable-iluvatar": s.switches.iluvatar,
        **dict(_leadership(s)),
        "legacy-metrics": s.legacy_metrics,
        "grace-period": format_duration(s.grace_seconds),
    }


def _listeners(settings: Settings) -> Iterable[tuple[str, Any]]:
    at = settings.listeners
    if at.single:
        yield "http_bind", _address(at.single)
    else:
        yield "extender-bind", _address(at.extender)
        yield "webhook-bind", _address(at.webhook)
        yield "extender-tls", at.extender_tls
    yield "metrics-bind-address", _address(at.metrics)
    yield "client-ca-file", at.client_ca


def _tls(settings: Settings) -> Iterable[tuple[str, Any]]:
    match settings.tls:
        case TlsFiles(certificate, key):
            yield from (("cert_file", certificate), ("key_file", key))
        case SelfManaged() as own:
            yield "tls-secret", f"{own.namespace}/{own.secret}"
            yield "webhook-service", own.service
            yield "webhook-configuration", own.webhook_configuration


def _leadership(settings: Settings) -> Iterable[tuple[str, Any]]:
    lease = settings.leadership
    yield "leader-elect", lease is not None
    if lease is not None:
        yield "leader-elect-resource-name", lease.name
        yield "leader-elect-resource-namespace", lease.namespace
        yield "HOSTNAME", lease.identity


def _address(address: Address | None) -> str:
    if address is None:
        return NONE
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"
