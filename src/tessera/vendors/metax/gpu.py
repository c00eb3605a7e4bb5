"""Whole MetaX GPUs.

A node only reports how many whole GPUs it has, so ids are invented here and MetaX's own plugin chooses the real ones.
A whole GPU is never shared. sGPU slices, which MetaX's plugin registers by uuid, are in `sgpu`.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tessera.core.fit import card_checks
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grants
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import NodeInfo
from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest, Request
from tessera.core.policies import node_policy
from tessera.vendors.base import AnnotationKeys, NodeProblem, Vendor
from tessera.vendors.drafts import BadRequest, Resources
from tessera.vendors.parts.capacity import numbered_cards
from tessera.vendors.parts.card_shares import whole_cards
from tessera.wire.objects import Node

CARD_MEMORY = 65536
"""MiB charged for a whole GPU; the node does not report it"""

LOSSES = "metax-tech.com/gpu.topology.losses"
SCORES = "metax-tech.com/gpu.topology.scores"
BEST_SCORE = 2000
"""the score of a node whose topology loses nothing"""
WORST_LOSS = 2**31 - 1
"""larger values are not topology losses"""


class MetaxGpu(Vendor):
    key = "Metax-GPU"
    scores_nodes = True
    keys = AnnotationKeys(
        to_allocate="hami.io/metax-gpu-devices-to-allocate",
        allocated="hami.io/metax-gpu-devices-allocated",
        traits=(LOSSES, SCORES),
    )

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key, cores=WHOLE_CARD_CORES)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return numbered_cards(self, node, stem="metax", memory=CARD_MEMORY)

    def fit(self, ask: Ask) -> Grants | Misfit:
        """Prefer cards of the pod's earlier containers: an app container reuses its init container's card.

        HAMi up to v2.10 refuses all other cards here, so a pod with two GPU containers never fits.
        """
        before = ask.earlier
        if before:
            ask = replace(ask, cards=sorted(ask.cards, key=lambda card: card.device.uuid not in before))
        return card_checks.fit(self, ask)

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        key = SCORES if node_policy(pod.node_policy).prefers_idle_nodes else LOSSES
        text = node.facts.traits.get(key)
        if text is None:
            return 0.0
        cards = {grant.uuid for container in grants for grant in container}
        return float(BEST_SCORE - _loss(text, len(cards)))


def _loss(text: str, count: int) -> int:
    """The topology loss of taking `count` cards; 0 if the value cannot be parsed."""
    try:
        losses = msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return 0
    loss = losses.get(str(count), 0)
    return loss if abs(loss) <= WORST_LOSS else 0
