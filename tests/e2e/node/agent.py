"""`tessera device-plugin` in a node container, with simulated cards and a stub of the enforcing library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.node.container import NodeContainer
from tests.e2e.node.control_plane import ACCOUNT, NODE, NodeControlPlane
from tests.e2e.node.kubelet import HOME
from tests.e2e.processes import Program
from tests.support.network import free_ports

CARDS = 16
MODEL = "A100-SXM4-80GB"
MEMORY = 81920
"""MiB of one card"""
SPLIT = 10
"""containers on one card"""
PLUGINS = HOME / "device-plugins"
CDI = Path("/run/cdi")
"""the container's own; containerd looks there"""


class Agent:
    """The agent and where it is asked how it is. It may be killed and started again."""

    def __init__(
        self,
        node_container: NodeContainer,
        plane: NodeControlPlane,
        *flags: str,
        plugins: Path = PLUGINS,
        cards: int = CARDS,
        label: str = "agent",
        node: Mapping[str, Any] | None = None,
    ) -> None:
        """`plugins` is where it looks for kubelet, `node` its entry of the node configuration."""
        self.hook = node_container.folder / "hook"
        library = self.hook / "vgpu"
        library.mkdir(parents=True, exist_ok=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (library / name).touch()
        self.state = node_container.folder / "agent"
        described = node_container.folder / "cards.json"
        simulated: dict[str, Any] = {"cards": [{"model": MODEL, "count": cards, "memory": MEMORY}]}
        if node is not None:
            # MIG instances outlive the agent.
            simulated["state"] = f"{label}-state.json"
        described.write_text(json.dumps(simulated))
        configuration = node_container.folder / "config.json"
        configuration.write_text(json.dumps({"nodeconfig": [{"name": NODE, **(node or {})}]}))
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.program = Program(
            label,
            [
                *(sys.executable, "-m", "tessera", "device-plugin", "--log-format=json"),
                f"--kubeconfig={plane.kubeconfig_of_account(ACCOUNT)}",
                f"--node-name={NODE}",
                f"--simulate={described}",
                f"--node-config-file={configuration}",
                f"--device-split-count={SPLIT}",
                f"--plugin-dir={plugins}",
                f"--hook-path={self.hook}",
                f"--lock-dir={node_container.folder / 'lock'}",
                f"--state-dir={self.state}",
                f"--cdi-dir={CDI}",
                f"--mps-dir={node_container.folder / 'mps'}",
                f"--metrics-bind-address=127.0.0.1:{port}",
                *flags,
            ],
            folder=node_container.logs,
            environ={"PATH": os.defpath},
        )

    async def is_ready(self) -> bool:
        """Whether it says that kubelet can use it."""
        assert self.program.is_running, f"{self.program.name} ended:\n{self.program.words()}"
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/readyz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False
