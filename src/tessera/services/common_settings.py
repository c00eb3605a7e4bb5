"""Settings that several services have, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tessera.services.settings_table import Group, Setting, setting
from tessera.services.value_types import COUNT, DIRECTORY, DNS_NAME, FILE, NAME, SWITCH, optional

# fmt: off


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """How a service reaches the apiserver."""

    kubeconfig: str | None = setting(Group.CLUSTER, "kubeconfig", optional(FILE), None,
        "How to reach the apiserver.", default_text="KUBECONFIG, in-cluster, ~/.kube/config", expands_home=True)
    context: str | None = setting(Group.CLUSTER, "context", optional(NAME), None, "Context of the kubeconfig.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServiceSettings:
    """Rows that agent and monitor take by `shared`."""

    node_name: str = setting(Group.CLUSTER, "node-name", DNS_NAME, "",
        "The node that is served.", env=("NODE_NAME", "NodeName"),
        needed="a DaemonSet sets NODE_NAME from spec.nodeName")
    driver_root_here: Path = setting(Group.FOLDERS, "driver-root-ctr-path", DIRECTORY, Path("/driver-root"),
        "Where this process sees the host's driver root.", aliases=("container-driver-root",),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"))


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Open connections per listener. Peers that may call filter and bind do not count."""

    connections: int = setting(Group.LISTENERS, "max-connections", COUNT, 512,
        "Open connections per listener; above, the address with most of them loses one.")
    connections_per_peer: int = setting(Group.LISTENERS, "max-connections-per-peer", COUNT, 256,
        "Of them from one address; above the apiserver's --max-mutating-requests-inflight, which is 200.")


PRINT_CONFIG = Setting("print-config", SWITCH, False, Group.OPERATION,
    "Print the effective configuration as YAML and exit.")
