"""Vastai: cards by number alone, or the dies of cards.

A node agent that registers dies (`DeviceStrategy` is `die`) names the physical card of each die as its `AIC`. Dies of
one card are granted together where possible, and the mutex policy looks at whole cards. A die without an `AIC` is a
card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tessera.core.fit import card_checks
from tessera.core.fit.card_checks import Fitting
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import PodRequest
from tessera.vendors.base import AnnotationKeys, Family
from tessera.vendors.parts.card_choice import judge_all
from tessera.vendors.parts.counted import Counted, CountedSection
from tessera.wire.keys import NODE_LOCK

STRATEGY = "DeviceStrategy"
DIE = "die"
PHYSICAL_CARD = "AIC"


class Vastai(Counted):
    key = "Vastai"
    scores_nodes = True
    keys = AnnotationKeys(
        register="hami.io/node-va-register",
        handshake="hami.io/node-handshake-va",
        to_allocate="hami.io/Vastai-devices-to-allocate",
        allocated="hami.io/Vastai-devices-allocated",
        use_uuids=("vastaitech.com/use-gpuuuid",),
        avoid_uuids=("vastaitech.com/nouse-gpuuuid",),
        lock=NODE_LOCK,
    )

    def fit(self, ask: Ask) -> Grants | Misfit:
        if not dies(ask.cards):
            return super().fit(ask)
        # Under the mutex policy one die in use makes the whole physical card unavailable.
        alone = ask.policy.unused_cards_only
        busy = {physical_card(card.device) for card in ask.cards if card.used > 0} if alone else set()
        fitting, refused = judge_all(ask, lambda card: self._judge_die(card, ask, busy))
        return card_checks.choose(self, ask, _card_by_card(fitting) if ask.request.count > 1 else fitting, refused)

    def _judge_die(self, card: Card, ask: Ask, busy: set[str]) -> Grant | CardMisfit:
        found = self.judge(card, ask)
        if isinstance(found, Grant) and physical_card(card.device) in busy:
            return CardMisfit(card.device.uuid, Reason.EXCLUSIVE_CONFLICT, asked=1, free=0)
        return found

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        """The fraction of each container's dies that is on one physical card."""
        own = {card.device.uuid: card.device for card in node.of_vendor(self.key)}
        used = [[own[grant.uuid] for grant in container] for container in grants if container]
        if not all(is_die(device) for container in used for device in container):
            return 0.0
        return sum(max(Counter(map(physical_card, container)).values()) / len(container) for container in used)


def is_die(device: Device) -> bool:
    return device.custom.get(STRATEGY) == DIE


def dies(cards: Sequence[Card]) -> bool:
    """Whether a node registers dies: its first card decides for all."""
    first = min(cards, key=lambda card: (card.device.index, card.device.uuid), default=None)
    return first is not None and is_die(first.device)


def physical_card(device: Device) -> str:
    name = device.custom.get(PHYSICAL_CARD)
    return f"AIC {name}" if isinstance(name, str | int) else device.uuid


def _card_by_card(fitting: Fitting) -> Fitting:
    """Dies of the physical card with the most dies first; ties in the order of their first die."""
    sizes = Counter(physical_card(card.device) for card, _ in fitting)
    firsts: dict[str, int] = {}
    for position, (card, _) in enumerate(fitting):
        firsts.setdefault(physical_card(card.device), position)

    def rank(pair: tuple[Card, Grant]) -> tuple[int, int]:
        name = physical_card(pair[0].device)
        return -sizes[name], firsts[name]

    return sorted(fitting, key=rank)


FAMILY = Family(
    title="Vastai",
    section="vastai",
    chart=CountedSection(resource_count_name="vastaitech.com/va"),
    build=lambda section, _: [Vastai(section.names)],
)
