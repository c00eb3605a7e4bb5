"""The six nodes of the demo: their files of simulated cards, and the nodes made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tessera.host.simulated.hardware import simulated_hardware
from tessera.node.settings import AgentSettings, DraAllocator
from tessera.wire.node_config import Mode, NodeSettings
from tessera_lab.demo.agents import AgentNode, paths_in
from tessera_lab.demo.ascend import AscendNode, ascend_chips
from tessera_lab.sandbox.nodes.node import SimulatedNode, SimulatedNodeSpec

CARDS_FILE = "cards.yaml"
"""in a node's folder: edit it to break a card while the demo runs (docs/install.md)"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node with NVIDIA cards: the content of its file of simulated cards."""

    name: str
    cards: tuple[Mapping[str, Any], ...]
    links: tuple[Mapping[str, Any], ...] = ()
    mode: Mode = "hami-core"
    labels: Mapping[str, str] = field(default_factory=dict)


MACHINES = (
    Machine(
        "a100-1",
        ({"model": "A100-SXM4-80GB", "count": 2},),
        links=({"cards": [0, 1], "nvlinks": 12},),
    ),
    Machine(
        "a100-2",
        ({"model": "A100-SXM4-40GB", "count": 2},),
        links=({"cards": [0, 1], "nvlinks": 12},),
    ),
    # Two groups of four: a pod with four cards should get one of them.
    Machine(
        "h100-1",
        ({"model": "H100", "count": 8, "numa": [0, 0, 0, 0, 1, 1, 1, 1]},),
        links=({"cards": [0, 1, 2, 3], "nvlinks": 18}, {"cards": [4, 5, 6, 7], "nvlinks": 18}),
    ),
    Machine("l4-1", ({"model": "L4", "count": 2},)),
    Machine("mig-1", ({"model": "A100-SXM4-80GB", "count": 1, "mig": True},), mode="mig"),
)
ASCEND_NODE, ASCEND_CHIPS = "ascend-1", 2


def demo_nodes(folder: Path) -> list[SimulatedNode]:
    """All nodes. Each keeps its files in its own subfolder."""
    chips = ascend_chips(ASCEND_NODE, ASCEND_CHIPS)
    return [*(make_node(machine, folder / machine.name) for machine in MACHINES), AscendNode(ASCEND_NODE, chips)]


def make_node(machine: Machine, folder: Path) -> AgentNode:
    """A node with the real agent, which keeps its files in the folder."""
    folder.mkdir()
    file = folder / CARDS_FILE
    document = {"cards": [*machine.cards], "links": [*machine.links]}
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    settings = AgentSettings(
        node_name=machine.name,
        node=NodeSettings(mode=machine.mode),
        topology_scores=True,
        dra=True,
        dra_allocator=DraAllocator.TESSERA,
        paths=paths_in(folder),
    )
    hardware = simulated_hardware(file, node_name=machine.name)
    return AgentNode(SimulatedNodeSpec(machine.name, labels=machine.labels), settings, hardware)
