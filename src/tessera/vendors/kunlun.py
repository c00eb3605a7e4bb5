"""Kunlun: whole cards (`kunlun`) and slices of them (vXPU, key `XPU`), both chosen by the links between cards.

Whole cards follow from the node's capacity, sliceable ones are registered by a node agent. A card is cut into slices of
one size only. Which cards are free is decided here, which may go together in `kunlun_layout`.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core import generic
from tessera.core.cards import Card, NodeView
from tessera.core.devices import Device
from tessera.core.grants import Grant, Grants
from tessera.core.misfits import CardMisfit, Misfit, Reason
from tessera.core.requests import PodRequest, Request
from tessera.core.rules import Ask
from tessera.vendors import kunlun_layout as layout
from tessera.vendors.base import (
    AnnotationKeys,
    Bound,
    Family,
    NodeProblem,
    ResourceNames,
    Section,
    Switches,
    Vendor,
)
from tessera.vendors.capacity import SHARERS
from tessera.vendors.card_shares import WHOLE_MEMORY, memory_of
from tessera.vendors.choosing import Judge, all_as, judge_all, pays_together, refuse_unpaid, refuse_used, verdict
from tessera.vendors.counts import cards_asked, cards_by_capacity
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.registered import registered_cards
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node

CARD_MEMORY = 98304
"""MiB of a whole card"""
SLICES = (24576, 49152, CARD_MEMORY)
"""MiB; memory is rounded up to one of these"""
ONLY_COUNTS = "Kunlun cards are given out as 1, 2, 4 or 8 to a container"

USE_UUIDS = ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid")
AVOID_UUIDS = ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid")

NODE_SCORES = {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}
"""by how much more ragged the pod's cards are than the cards in use before"""
OTHER_NODE_SCORE = 1000.0


class KunlunSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""
    resource_v_count_name: str = ""
    resource_v_memory_name: str = ""


CHART = KunlunSection(
    resource_count_name="kunlunxin.com/xpu",
    resource_v_count_name="kunlunxin.com/vxpu",
    resource_v_memory_name="kunlunxin.com/vxpu-memory",
)


class Kunlun(Vendor):
    """Whole cards."""

    key = "kunlun"
    scores_nodes = True
    keys = AnnotationKeys(allocated="hami.io/kunlun-allocated", use_uuids=USE_UUIDS, avoid_uuids=AVOID_UUIDS)

    def __init__(self, section: KunlunSection) -> None:
        self.names = ResourceNames(count=section.resource_count_name)

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        warn_of_count(container, pod, self.names.count)
        return super().mutate(container, pod)

    def request(self, resources: Resources) -> Request | BadRequest | None:
        count = cards_asked(resources, self.names.count)
        if count is None or isinstance(count, BadRequest):
            return count
        return Request(vendor=self.key, count=count, percent=WHOLE_MEMORY)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        count = cards_by_capacity(node, self.names.count)
        if isinstance(count, NodeProblem):
            return count
        return tuple(
            Device(
                uuid=f"{node.name}-kunlun-{position}",
                vendor=self.key,
                index=position,
                slots=SHARERS,
                memory=CARD_MEMORY,
                model=self.key,
                numa=0 if position < count // 2 else 1,
            )
            for position in range(count)
        )

    def fit(self, ask: Ask) -> Grants | Misfit:
        # Free cards are all alike, so no policy has a say: the lowest index comes first.
        by_index = sorted(ask.cards, key=lambda card: (card.device.index, card.device.uuid))
        return fit_layout(self, replace(ask, cards=by_index), lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        return generic.refuse_identity(self, ask, card) or refuse_used(card) or self.grant(card, ask)

    def grant(self, card: Card, ask: Ask) -> Grant:
        device = card.device
        return Grant(
            uuid=device.uuid,
            vendor=self.key,
            memory=device.memory,
            cores=device.cores,
            index=device.index,
        )

    def node_score(self, node: NodeView, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        """Compares the cards in use with this pod's own, on the boards where this pod has cards."""
        if any(card.device.vendor != self.key for card in node.cards):
            return 0.0
        seat = layout.seats([card.device for card in node.cards])
        after = frozenset(seat[grant.uuid] for container in grants for grant in container)
        boards = {place // layout.BOARD for place in after}
        before = frozenset(
            place
            for card in node.cards
            if card.used > 0 and (place := seat[card.device.uuid]) // layout.BOARD in boards
        )
        return NODE_SCORES.get(layout.bubbles(after) - layout.bubbles(before), OTHER_NODE_SCORE)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        for container in bound.grants:
            if container:
                written["BAIDU_COM_DEVICE_IDX"] = ",".join(str(grant.index) for grant in container)
        return written


class Vxpu(Vendor):
    """Slices of cards. A card that registers no number of slots or no cores is limited by its memory alone."""

    key = "XPU"
    keys = AnnotationKeys(
        register="hami.io/node-register-xpu",
        handshake="hami.io/node-handshake-xpu",
        to_allocate="hami.io/xpu-devices-to-allocate",
        allocated="hami.io/xpu-devices-allocated",
        use_uuids=USE_UUIDS,
        avoid_uuids=AVOID_UUIDS,
        lock=NODE_LOCK,
    )

    def __init__(self, section: KunlunSection) -> None:
        self.names = ResourceNames(count=section.resource_v_count_name, memory=section.resource_v_memory_name)
        self.quota_memory = self.names.memory

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        warn_of_count(container, pod, self.names.count)
        asks = super().mutate(container, pod)
        if asks is True and container.text(self.names.memory, limits_only=True) is not None:
            memory = self._slice(container)
            # What cannot be rounded stays as written, for the refusal to show.
            if isinstance(memory, int):
                container.set_both(self.names.memory, memory)
        return asks

    def request(self, resources: Resources) -> Request | BadRequest | None:
        count = cards_asked(resources, self.names.count)
        if count is None or isinstance(count, BadRequest):
            return count
        if resources.text(self.names.memory) is None:
            return Request(vendor=self.key, count=count, memory=CARD_MEMORY, percent=WHOLE_MEMORY, cores=100)
        memory = self._slice(resources)
        if isinstance(memory, BadRequest):
            return memory
        return Request(vendor=self.key, count=count, memory=memory, cores=memory * 100 // CARD_MEMORY)

    def _slice(self, resources: Resources) -> int | BadRequest:
        """The memory that is named, rounded up to a slice."""
        memory = memory_of(resources, self.names.memory)
        if isinstance(memory, BadRequest):
            return memory
        found = next((size for size in SLICES if memory <= size), None)
        advice = f"a card has {CARD_MEMORY} MiB, write at most that"
        return found or BadRequest(self.names.memory, str(memory), advice)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        return registered_cards(node, self.keys.register, vendor=self.key)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return fit_layout(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        grant = self.grant(card, ask)
        return (
            generic.refuse_identity(self, ask, card)
            or _refuse_sharing(card, ask)
            or refuse_unpaid(ask.room, grant)
            or _refuse_slice(card, grant)
            or grant
        )


def fit_layout(rules: Vendor, ask: Ask, judge: Judge) -> Grants | Misfit:
    """Among the cards that do by themselves, those that the layout allows together."""
    fitting, refused = judge_all(ask, judge)
    count = ask.request.count
    if count in layout.COUNTS and len(fitting) < count:
        return verdict(rules, ask, refused, taken=len(fitting))
    seat = layout.seats([card.device for card in ask.cards])
    by_seat = {seat[card.device.uuid]: grant for card, grant in fitting}
    chosen = layout.choose(count, list(by_seat))
    if chosen is None:
        misfit = verdict(rules, ask, [*refused, *all_as(Reason.NUMA_NOT_FIT, fitting, asked=count)])
        return misfit if count in layout.COUNTS else replace(misfit, detail=ONLY_COUNTS)
    grants = tuple(by_seat[place] for place in chosen)
    if not pays_together(ask.room, grants):
        return verdict(rules, ask, [*refused, *all_as(Reason.QUOTA_NOT_FIT, fitting, asked=count)])
    return grants


def _refuse_sharing(card: Card, ask: Ask) -> CardMisfit | None:
    if card.device.slots > 0:
        return generic.refuse_sharing(ask, card)
    return refuse_used(card) if "mutex" in ask.words else None


def _refuse_slice(card: Card, grant: Grant) -> CardMisfit | None:
    device = card.device
    if card.free_memory < grant.memory:
        return CardMisfit(
            device.uuid,
            Reason.CARD_INSUFFICIENT_MEMORY,
            asked=grant.memory,
            free=card.free_memory,
            total=device.memory,
        )
    if card.used_memory != card.used * grant.memory:
        return CardMisfit(device.uuid, Reason.CUSTOM_RULE, asked=grant.memory, total=device.memory)
    if 0 < device.cores < card.used_cores + grant.cores:
        return CardMisfit(
            device.uuid, Reason.CARD_INSUFFICIENT_CORES, asked=grant.cores, free=card.free_cores, total=device.cores
        )
    return None


def warn_of_count(container: ContainerDraft, pod: PodDraft, name: str) -> None:
    count = container.amount(name, least=1)
    if isinstance(count, int) and count not in layout.COUNTS:
        pod.warn(f"{name}: {count} will never be placed: {ONLY_COUNTS}")


def build(section: KunlunSection, switches: Switches) -> list[Vendor]:
    return [Kunlun(section), Vxpu(section)]


FAMILY = Family(section="kunlun", schema=KunlunSection, chart=CHART, build=build)
