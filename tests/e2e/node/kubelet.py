"""A real kubelet in a node container: one node, with its state where kubelet always has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.node.container import NodeContainer
from tests.e2e.node.container_init import ADDRESS
from tests.e2e.node.control_plane import NODE, NodeControlPlane
from tests.e2e.node.runtime import SOCKET
from tests.e2e.processes import FEWER_COLLECTIONS, Program

HOME = Path("/var/lib/kubelet")
PORT = 10250
MAX_PODS = 250


def kubelet(node_container: NodeContainer, tools: Mapping[str, Path], plane: NodeControlPlane) -> Program:
    """Not started."""
    folder = node_container.folder / "kubelet"
    folder.mkdir()
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(_configuration(node_container, folder)))
    arguments = (
        f"--config={file}",
        f"--kubeconfig={plane.kubeconfig_of_node()}",
        f"--hostname-override={NODE}",
        f"--node-ip={ADDRESS}",
        f"--root-dir={HOME}",
        f"--cert-dir={folder / 'certificates'}",
        "--v=2",
    )
    environ = {"PATH": _PATH, **FEWER_COLLECTIONS}
    return Program("kubelet", [str(tools["kubelet"]), *arguments], folder=node_container.logs, environ=environ)


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""mount and umount may be anywhere"""


def _configuration(node_container: NodeContainer, folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "port": PORT,
        # Nothing else is on this network.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node_container.control_group}",
        # Also on machines that have the older control groups, swap, or a root without CAP_SYS_RESOURCE.
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "podLogsDir": str(folder / "logs"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "maxPods": MAX_PODS,
        # A machine whose disk is nearly full must not lose the images, nor its pods.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "1Mi",
            "nodefs.inodesFree": "1",
            "imagefs.available": "1Mi",
            "imagefs.inodesFree": "1",
        },
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 1000,
        "eventRecordQPS": 0,
    }
