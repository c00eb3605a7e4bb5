"""`tessera device-plugin` in a room, with simulated cards and files of the enforcing library that do nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.e2e.node.container import Room
from tests.e2e.node.control_plane import ACCOUNT, NODE, NodePlane
from tests.e2e.node.kubelet import HOME
from tests.e2e.processes import Program, free_ports

CARDS = 16
MODEL = "A100-SXM4-80GB"
MEMORY = 81920
"""MiB of one card"""
SPLIT = 10
"""containers on one card"""
PLUGINS = HOME / "device-plugins"


class Agent:
    """The agent and where it is asked how it is. It may be killed and started again."""

    def __init__(self, room: Room, plane: NodePlane, *, plugins: Path = PLUGINS, label: str = "agent") -> None:
        """`plugins` is where it looks for kubelet."""
        self.hook = room.folder / "hook"
        library = self.hook / "vgpu"
        library.mkdir(parents=True, exist_ok=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (library / name).touch()
        cards = room.folder / "cards.json"
        cards.write_text(json.dumps({"cards": [{"model": MODEL, "count": CARDS, "memory": MEMORY}]}))
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.program = Program(
            label,
            [
                *(sys.executable, "-m", "tessera", "device-plugin", "--log-format=json"),
                f"--kubeconfig={plane.kubeconfig_of_account(ACCOUNT)}",
                f"--node-name={NODE}",
                f"--simulate={cards}",
                f"--device-split-count={SPLIT}",
                f"--plugin-dir={plugins}",
                f"--hook-path={self.hook}",
                f"--lock-dir={room.folder / 'lock'}",
                f"--state-dir={room.folder / 'agent'}",
                f"--cdi-dir={room.folder / 'cdi'}",
                f"--mps-dir={room.folder / 'mps'}",
                f"--metrics-bind-address=127.0.0.1:{port}",
            ],
            folder=room.logs,
            environ={"PATH": os.defpath},
        )
