"""The control plane of the end-to-end tests, as a kubelet in the same node container needs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.e2e.control_plane import ControlPlane
from tests.e2e.node.container_init import SERVICE_ADDRESS

NODE = "gpu-node"
ACCOUNT = "tessera-device-plugin"
"""of the agent, in rbac.yaml"""
RBAC = Path(__file__).with_name("rbac.yaml")


FLAGS = (
    # By default the apiserver looks for a node by its name first, which cannot be resolved here.
    "--kubelet-preferred-address-types=InternalIP",
    # Without kube-proxy: pods reach it at its Service's own address, and it reaches webhooks at their pods' addresses.
    "--bind-address=0.0.0.0",
    "--enable-aggregator-routing=true",
)


class NodeControlPlane(ControlPlane):
    """Lets one node in, by a token of its own, and reads logs from it. Serves pods at the address of its Service."""

    certificate_names = (*ControlPlane.certificate_names, SERVICE_ADDRESS)
    fixed_port = 443

    def __init__(self, folder: Path, tools: Mapping[str, Path]) -> None:
        super().__init__(folder, tools, apiserver_flags=FLAGS)

    def start(self) -> None:
        super().start()
        self.kubectl("apply", "-f", str(RBAC))

    def kubeconfig_of_node(self) -> Path:
        return self._write_kubeconfig(NODE, f"{NODE}-secret")

    def _write_files(self) -> None:
        super()._write_files()
        with (self.folder / "tokens.csv").open("a") as tokens:
            tokens.write(f'\n{NODE}-secret,system:node:{NODE},{NODE},"system:nodes"')
