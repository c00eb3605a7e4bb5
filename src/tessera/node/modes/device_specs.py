"""The device nodes of cards and MIG instances.

A card's node is named after its minor number. A MIG instance has its card's node and the nodes of two capabilities,
whose numbers the driver lists. Nodes that the driver does not report are never invented. Only the driver's
control nodes are checked for existence, because the agent may not see nodes created after it started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tessera.host.cards import CardFacts, MigInstance
from tessera.node.modes.base import DeviceNode
from tessera.node.settings import Paths

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
WSL_NODE = "/dev/dxg"
"""for all cards of a Windows host, which has no nodes for single cards"""

_CAPABILITY = re.compile(r"gpu([0-9]{1,4})/gi([0-9]{1,4})(?:/ci([0-9]{1,4}))?/access ([0-9]{1,7})", re.ASCII)


class Capability(NamedTuple):
    """The right to use a GPU instance, or one of its compute instances."""

    card: int
    """minor number"""
    gpu_instance: int
    compute_instance: int | None = None


def parse_mig_minors(text: str) -> dict[Capability, int]:
    """Parses the driver's list of capabilities. Other lines are skipped; the first of equal entries counts."""
    minors: dict[Capability, int] = {}
    for line in text.splitlines():
        found = _CAPABILITY.fullmatch(line.strip())
        if found is not None:
            card, gpu_instance, compute_instance, minor = found.groups()
            inner = None if compute_instance is None else int(compute_instance)
            minors.setdefault(Capability(int(card), int(gpu_instance), inner), int(minor))
    return minors


class DeviceSpecs:
    """Looks nodes up. /dev and /proc are in memory, so this does not block."""

    def __init__(self, paths: Paths, *, here: Path = Path("/")) -> None:
        self._paths = paths
        self._here = here
        """the root below which the agent sees /dev"""
        # As strings, because every response needs them.
        self._root, self._root_here = (f"{each}".rstrip("/") for each in (paths.dev_root, here))

    def control(self) -> tuple[DeviceNode, ...]:
        """Returns the nodes that every container with a card needs besides it."""
        return tuple(self.node(path) for path in CONTROL_NODES if self.is_here(path))

    def of_card(self, card: CardFacts) -> tuple[DeviceNode, ...]:
        """Returns nothing if the card has no node."""
        if card.minor is not None:
            return (self.node(f"/dev/nvidia{card.minor}"),)
        return (self.node(WSL_NODE),) if self.is_here(WSL_NODE) else ()

    def of_instance(self, instance: MigInstance, card: CardFacts) -> tuple[DeviceNode, ...]:
        """Returns nothing if the driver does not list the instance's capabilities."""
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
        """Returns existing nodes that match a pattern such as `/dev/nvidia-fs*`."""
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
            # The driver does not support MIG.
            return {}
