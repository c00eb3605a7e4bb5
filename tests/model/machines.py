"""Nodes of the model: their cards, what their plugins register, and how the plugins hand devices over.

| plugin | says | hands over |
|---|---|---|
| Tessera's, `env` | tessera.io/agent | pods that use the downward API without turns, others by turns |
| Tessera's, `cdi` | tessera.io/agent | by turns |
| foreign | nothing | one pod at a time, under the node lock |
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from tessera.wire.keys import AGENT, DEVICE_CORDON
from tessera.wire.objects import Metadata, Node, NodeStatus
from tests.model.shapes import GPU, MLU_CORES, MLU_MEMORY, XPU
from tests.support.builders import A100_40GB, REGISTER

XPU_REGISTER = "hami.io/node-register-xpu"
HANDSHAKE = "hami.io/node-handshake"
XPU_HANDSHAKE = "hami.io/node-handshake-xpu"
OWNED = (REGISTER, XPU_REGISTER, AGENT, DEVICE_CORDON)
"""annotations that a machine sets as a whole"""

GARBLED = "[{"
"""a registration that cannot be decoded"""

STOCK = "stock"
"""kind of a node whose cards are for claims alone, and left to a stock kube-scheduler: nothing is registered"""
KINDS = ("gpu", "gpu and mlu", "mig", "xpu", "gpu", "mlu")
AGENTS = ("env", "env", "cdi", None)


@dataclass
class Machine:
    """One node's hardware and plugins."""

    name: str
    kind: str
    agent: str | None
    shakes_hands: bool
    cards: list[dict[str, Any]] = field(default_factory=list)
    mlus: int = 0
    mlu_units: int = 64
    """of 256 MiB, per card"""
    hidden: set[str] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)
    garbled: bool = False
    """whether its registration cannot be decoded"""
    dead: bool = False
    """whether its plugin is gone: kubelet shows no devices"""

    def node(self) -> Node:
        shown = [card for card in self.cards if card["id"] not in self.hidden]
        annotations = {}
        if self.cards and self.kind != STOCK:
            register = XPU_REGISTER if self.kind == "xpu" else REGISTER
            annotations[register] = GARBLED if self.garbled else json.dumps(shown)
        if self.agent is not None:
            annotations[AGENT] = self.agent
        if self.cordoned:
            annotations[DEVICE_CORDON] = ",".join(sorted(self.cordoned))
        provided: dict[str, Any] = {}
        if self.cards and self.kind != STOCK:
            provided[XPU if self.kind == "xpu" else GPU] = "0" if self.dead else str(10 * len(shown))
        if self.mlus:
            provided[MLU_CORES] = 100 * self.mlus
            provided[MLU_MEMORY] = self.mlu_units * self.mlus
        return Node(Metadata(name=self.name, annotations=annotations), NodeStatus(provided, provided))

    @property
    def handshake(self) -> str:
        """The annotation of its plugin's handshake; empty = none."""
        if not self.shakes_hands or not self.cards:
            return ""
        return XPU_HANDSHAKE if self.kind == "xpu" else HANDSHAKE


def build(rng: random.Random, name: str, kind: str, agent: str | None) -> Machine:
    machine = Machine(name, kind, agent, rng.random() < 0.4)
    count = rng.randint(1, 3)
    for position in range(0 if kind == "mlu" else count):
        machine.cards.append(_card(rng, kind, name, position))
    if "mlu" in kind:
        machine.mlus = rng.randint(1, 2)
    return machine


def _card(rng: random.Random, kind: str, name: str, position: int) -> dict[str, Any]:
    card: dict[str, Any] = {"id": f"{name}-{position}", "index": position, "health": True, "numa": position // 2}
    if kind == "mig":
        return card | {
            "count": 7,
            "devmem": 40960,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-40GB",
            "mode": "mig",
            "migProfiles": list(A100_40GB),
        }
    if kind == "xpu":
        return card | {"count": 4, "devmem": 98304, "devcore": 100, "type": "KUNLUN P800"}
    memory = rng.choice((24576, 40960, 81920))
    return card | {
        "count": rng.choice((2, 4, 10)),
        "devmem": memory,
        "devcore": 100,
        "type": "NVIDIA A100",
        "mode": "hami-core",
    }
