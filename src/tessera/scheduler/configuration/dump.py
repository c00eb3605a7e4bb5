"""Settings as text: for `--print-config`, and for the line that is logged at start.

Every setting appears under the name of its flag, spelled as the flag reads it. Device sections are printed as in
device-config.yaml, so that the output can be used as such a file.
"""

from __future__ import annotations

from typing import Any

import yaml

from tessera.scheduler.configuration.device_sections import chart_sections
from tessera.scheduler.settings import SelfManaged, Settings, TlsFiles
from tessera.services import settings_table
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
    return {flag: value for flag, value in describe(settings).items() if usual.get(flag) != value}


def describe(settings: Settings) -> dict[str, Any]:
    """Everything but the device sections, by flag."""
    said = settings_table.describe(settings)
    # The two forms of listening exclude each other.
    for flag in ("extender-bind", "webhook-bind", "extender-tls") if settings.listeners.single else ("http_bind",):
        del said[flag]
    return said | _describe_tls(settings) | _describe_leadership(settings)


def _describe_tls(settings: Settings) -> dict[str, Any]:
    match settings.tls:
        case TlsFiles(certificate, key):
            return {"cert_file": certificate, "key_file": key}
        case SelfManaged(namespace, secret, service, configuration):
            name = f"{namespace}/{secret}"
            return {"tls-secret": name, "webhook-service": service, "webhook-configuration": configuration}
    return {}


def _describe_leadership(settings: Settings) -> dict[str, Any]:
    lease = settings.leadership
    if lease is None:
        return {"leader-elect": False}
    return {
        "leader-elect": True,
        "leader-elect-resource-name": lease.name,
        "leader-elect-resource-namespace": lease.namespace,
        "HOSTNAME": lease.identity,
    }
