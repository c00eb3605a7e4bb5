"""Device nodes of cards and MIG instances, as a container needs them.

A card's nodes are named after its minor number. An instance has its card's node and the nodes of two capabilities,
whose numbers the driver lists. Nothing is invented: what the driver does not tell has no nodes. Whether a node exists
is asked only for the driver's own control nodes, because the agent may not see nodes that were made after its start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tessera.node.inventory.cards import CardFacts, MigInstance
from tessera.node.modes.base import DeviceNode
from tessera.node.settings import Paths

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
WSL_NODE = "/dev/dxg"
"""all cards of a Windows host, which has no nodes of single cards"""

_CAPABILITY = re.compile(r"gpu([0-9]{1,4})/gi([0-9]{1,4})(?:/ci([0-9]{1,4}))?/access ([0-9]{1,7})", re.ASCII)


class Capability(NamedTuple):
    """The right to use a GPU instance, or one compute instance of it."""

    card: int
    """minor number"""
    gpu_instance: int
    compute_instance: int | None = None


def parse_mig_minors(text: str) -> dict[Capability, int]:
    """The driver's list of capabilities; lines about anything else are left out, the first of two equal ones counts."""
    minors: dict[Capability, int] = {}
    for line in text.splitlines():
        found = _CAPABILITY.fullmatch(line.strip())
        if found is not None:
            card, gpu_instance, compute_instance, minor = found.groups()
            inner = None if compute_instance is None else int(compute_instance)
            minors.setdefault(Capability(int(card), int(gpu_instance), inner), int(minor))
    return minors


class DeviceSpecs:
    """Looks nodes up; /dev and /proc answer from memory, so this does not wait."""

    def __init__(self, paths: Paths, *, here: Path = Path("/")) -> None:
        self._paths = paths
        self._here = here
        """the root below which the agent sees /dev"""
        # As texts, because every answer needs them.
        self._root, self._root_here = (f"{each}".rstrip("/") for each in (paths.dev_root, here))

    def control(self) -> tuple[DeviceNode, ...]:
        """What every container with a card needs besides it."""
        return tuple(self.node(path) for path in CONTROL_NODES if self.is_here(path))

    def of_card(self, card: CardFacts) -> tuple[DeviceNode, ...]:
        """Empty where the card has no node."""
        if card.minor is not None:
            return (self.node(f"/dev/nvidia{card.minor}"),)
        return (self.node(WSL_NODE),) if self.is_here(WSL_NODE) else ()

    def of_instance(self, instance: MigInstance, card: CardFacts) -> tuple[DeviceNode, ...]:
        """Empty where the driver does not know the instance's capabilities."""
        if card.minor is None or instance.compute_instance is None:
            return ()
        minors = self._capabilities()
        outer = minors.get(Capability(card.minor, instance.gpu_instance))
        inner = minors.get(Capability(card.minor, instance.gpu_instance, instance.compute_instance))
        if outer is None or inner is None:
            return ()
        capabilities = (self.node(f"/dev/nvidia-caps/nvidia-cap{minor}") for minor in (outer, inner))
        return (*self.of_card(card), *capabilities)

    def matching(self, pattern: str) -> tuple[DeviceNode, ...]:
        """Nodes that are here, by a pattern of names such as `/dev/nvidia-fs*`."""
        found = sorted(self._here.glob(pattern.lstrip("/")))
        return tuple(self.node("/" + str(each.relative_to(self._here))) for each in found)

    def is_here(self, path: str) -> bool:
        return os.path.exists(f"{self._root_here}{path}")

    def node(self, path: str) -> DeviceNode:
        return DeviceNode(container_path=path, host_path=f"{self._root}{path}")

    def _capabilities(self) -> Mapping[Capability, int]:
        try:
            return parse_mig_minors(self._paths.caps.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            # No such file: a driver without MIG.
            return {}
