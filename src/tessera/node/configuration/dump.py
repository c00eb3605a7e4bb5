"""A configuration in words: for `--print-config`, and for the one line that is logged at start.

What the node JSON can set appears under its names, everything else under the name of its flag, spelled as the flag
accepts it.
"""

from __future__ import annotations

from typing import Any

import yaml

from tessera.node.configuration.agent import Configuration
from tessera.node.settings import AgentSettings
from tessera.services.addresses import Address
from tessera.services.flag_values import NONE

_HEAD = "# The effective configuration of this node's agent.\n"


def print_configuration(configuration: Configuration) -> str:
    """The effective configuration as YAML."""
    settings = configuration.settings
    parts = {
        "nodeconfig": [{"name": settings.node_name, **describe_node(settings)}],
        "device-plugin": describe(configuration),
        "migProfileAllowlist": [
            {"models": list(each.models), "profiles": list(each.profiles)} for each in settings.mig_allowances
        ],
    }
    return _HEAD + yaml.safe_dump(parts, sort_keys=False, width=120, allow_unicode=True)


def changes(configuration: Configuration) -> dict[str, Any]:
    """What differs from the defaults."""
    usual = Configuration(settings=AgentSettings(node_name=""))
    known = describe(usual) | describe_node(usual.settings)
    told = describe(configuration) | describe_node(configuration.settings)
    return {name: value for name, value in told.items() if known.get(name) != value}


def describe_node(settings: AgentSettings) -> dict[str, Any]:
    """What one entry of the node JSON would say."""
    node = settings.node
    return {
        "operatingmode": node.mode,
        "devicesplitcount": node.split_count,
        "devicememoryscaling": node.memory_scaling,
        "devicecorescaling": node.core_scaling,
        "preconfigureddevicememory": node.preconfigured_memory,
        "libcudaloglevel": node.log_level,
        "enablenumatopology": node.numa_topology,
        "migstrategy": node.mig_strategy,
        "filterdevices": {"uuid": list(node.filtered.uuid), "index": list(node.filtered.index)},
        "enablegetpreferredallocation": node.preferred_allocation,
    }


def describe(configuration: Configuration) -> dict[str, Any]:
    """Everything that the node JSON cannot say, by flag or variable."""
    s, paths = configuration.settings, configuration.settings.paths
    return {
        "kubeconfig": configuration.kubeconfig or "",
        "context": configuration.context or "",
        "node-name": s.node_name,
        "inventory": configuration.inventory.value,
        "simulate": str(configuration.simulated or ""),
        "resource-name": s.resource,
        "fail-on-init-error": s.fail_on_init_error,
        "enable-topology-score": s.topology_scores,
        "text-registration": s.text_registration,
        "disable-core-limit": s.disable_core_limit,
        "nvidia-driver-root": str(paths.driver_root),
        "dev-root": str(paths.dev_root),
        "driver-root-ctr-path": str(paths.driver_root_here),
        "device-list-strategy": ",".join(sorted(each.value for each in s.strategies)),
        "device-id-strategy": s.id_strategy.value,
        "pass-device-specs": s.pass_device_specs,
        "cdi-annotation-prefix": s.cdi_annotation_prefix,
        "nvidia-cdi-hook-path": str(paths.cdi_hook),
        "gdrcopy-enabled": s.gdrcopy,
        "gds-enabled": s.gds,
        "mofed-enabled": s.mofed,
        "library-version": s.library_version,
        "kubelet-socket": str(paths.kubelet_socket or ""),
        "plugin-dir": str(paths.plugins),
        "pod-resources-socket": str(paths.pod_resources or ""),
        "hook-path": str(paths.hook),
        "state-dir": str(paths.state),
        "cdi-dir": str(paths.cdi),
        "mps-dir": str(paths.mps),
        "lock-dir": str(paths.lock),
        "metrics-bind-address": _address(configuration.metrics),
        "DP_DISABLE_HEALTHCHECKS": _xids(not s.health_checks or s.every_xid_is_ignored, s.ignored_xids),
        "DP_ENABLE_HEALTHCHECKS": _xids(s.every_xid_is_fatal, s.fatal_xids),
    }


def _xids(all_of_them: bool, xids: frozenset[int]) -> str:
    return ",".join([*(["all"] if all_of_them else []), *map(str, sorted(xids))])


def _address(address: Address | None) -> str:
    return NONE if address is None else str(address)
