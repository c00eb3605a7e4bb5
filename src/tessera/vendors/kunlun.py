"""Kunlun: whole cards (key `kunlun`) from the node's capacity, and slices of one size per card (vXPU, key `XPU`) on
cards that a node agent registers. Both decide which cards are free, and choose among these by the links of a board.

A board has two wings of four cards; inside a wing all cards are linked, between the wings only the pairs and groups
below. Cards sit on seats 0 to 7, the first four are the left wing. A node with fewer cards has empty seats, one with
more has several boards: a grant never spans boards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tessera.core.fit import card_checks
from tessera.core.fit.card_checks import verdict
from tessera.core.fit.device_rules import Ask, Rules
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import PodRequest, Request
from tessera.vendors.base import AnnotationKeys, Bound, Family, NodeProblem, ResourceNames, Section, Switches, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.parts.capacity import SHARERS, numbered_cards
from tessera.vendors.parts.card_choice import (
    Judge,
    all_as,
    judge_all,
    pays_together,
    refuse_unpaid,
    refuse_used,
    unused_card,
)
from tessera.vendors.parts.card_shares import WHOLE_MEMORY, cards_asked, memory_of, whole_cards
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node

CARD_MEMORY = 98304
"""MiB of a whole card"""
ONLY_COUNTS = "Kunlun cards are given out as 1, 2, 4 or 8 to a container"

USE_UUIDS = ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid")
AVOID_UUIDS = ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid")

WING = 4
BOARD = 2 * WING

COUNTS = (1, 2, 4, 8)
"""numbers of cards that one container can get"""

WING_ORDER = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
"""by count: how many free cards the chosen wing should have, best first, to keep even numbers free"""

PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))
GROUPS = ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6))

TIGHT = (4, 5)
"""free cards of a board with which any group is acceptable; with six, the two left over should be linked too"""

BUBBLES = {4: 0, 1: 2}
"""how ragged a wing is with this many cards in use; any other number counts `RAGGED`"""
RAGGED = 1


def fit_layout(rules: Vendor, ask: Ask, judge: Judge) -> Grants | Misfit:
    """Among the cards that pass one by one, those that the layout allows together."""
    fitting, refused = judge_all(ask, judge)
    count = ask.request.count
    if count in COUNTS and len(fitting) < count:
        return verdict(rules, ask, refused, taken=len(fitting))
    seat = seats([card.device for card in ask.cards])
    by_seat = {seat[card.device.uuid]: grant for card, grant in fitting}
    chosen = choose(count, list(by_seat))
    if chosen is None:
        misfit = verdict(rules, ask, [*refused, *all_as(Reason.NUMA_NOT_FIT, fitting, asked=count)])
        return misfit if count in COUNTS else replace(misfit, detail=ONLY_COUNTS)
    grants = tuple(by_seat[place] for place in chosen)
    if not pays_together(ask.room, grants):
        return verdict(rules, ask, [*refused, *all_as(Reason.QUOTA_NOT_FIT, fitting, asked=count)])
    return grants


def warn_of_count(container: ContainerDraft, pod: PodDraft, name: str) -> None:
    count = container.amount(name, least=1)
    if isinstance(count, int) and count not in COUNTS:
        pod.warn(f"{name}: {count} will never be placed: {ONLY_COUNTS}")


def seats(devices: Sequence[Device]) -> dict[str, int]:
    """By uuid: the card's index, or its rank by index and uuid where indexes are not distinct."""
    indexes = {device.index for device in devices}
    if len(indexes) == len(devices):
        return {device.uuid: device.index for device in devices}
    ranked = sorted(devices, key=lambda device: (device.index, device.uuid))
    return {device.uuid: rank for rank, device in enumerate(ranked)}


def choose(count: int, free: Sequence[int]) -> tuple[int, ...] | None:
    """The seats to grant, ascending; `free` is in order of preference, which decides within a wing only."""
    boards: dict[int, list[int]] = {}
    for seat in free:
        boards.setdefault(seat // BOARD, []).append(seat % BOARD)
    for board in sorted(boards):
        chosen = _on_board(count, boards[board])
        if chosen is not None:
            return tuple(sorted(board * BOARD + seat for seat in chosen))
    return None


def _on_board(count: int, free: list[int]) -> Sequence[int] | None:
    if count == BOARD:
        return free if len(free) == BOARD else None
    if count not in WING_ORDER:
        return None
    wings = ([seat for seat in free if seat < WING], [seat for seat in free if seat >= WING])
    for wanted in WING_ORDER[count]:
        for wing in wings:
            if len(wing) == wanted:
                return wing[:count]
    return _between_wings(count, frozenset(free))


def _between_wings(count: int, free: frozenset[int]) -> Sequence[int] | None:
    if count == 2:
        return next((pair for pair in PAIRS if free.issuperset(pair)), None)
    groups = [group for group in GROUPS if free.issuperset(group)]
    if not groups or count != WING:
        return None
    # No wing is completely free here, so at most six cards are free.
    if len(free) in TIGHT:
        return groups[0]
    return next((group for group in groups if _linked(free.difference(group))), groups[-1])


def _linked(rest: frozenset[int]) -> bool:
    first, second = sorted(rest)
    return (first, second) in PAIRS or first // WING == second // WING


def bubbles(used: frozenset[int]) -> int:
    """How ragged the use of a board is: full wings are best, single cards worst."""
    if not used:
        return RAGGED
    left = sum(1 for seat in used if seat % BOARD < WING)
    return BUBBLES.get(left, RAGGED) + BUBBLES.get(len(used) - left, RAGGED)


NODE_SCORES = {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}
"""by how much more ragged the pod's cards are than the cards in use before"""
OTHER_NODE_SCORE = 1000.0


class Kunlun(Vendor):
    key = "kunlun"
    scores_nodes = True
    keys = AnnotationKeys(allocated="hami.io/kunlun-allocated", use_uuids=USE_UUIDS, avoid_uuids=AVOID_UUIDS)

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        warn_of_count(container, pod, self.names.count)
        return super().mutate(container, pod)

    def request(self, resources: Resources) -> Request | BadRequest | None:
        return whole_cards(resources, self.names.count, vendor=self.key)

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        found = numbered_cards(self, node, stem="kunlun", memory=CARD_MEMORY, slots=SHARERS)
        if isinstance(found, NodeProblem):
            return found
        half = len(found) // 2
        return tuple(replace(card, numa=0 if card.index < half else 1) for card in found)

    def fit(self, ask: Ask) -> Grants | Misfit:
        # Free cards are all alike, so policies do not matter: the lowest index comes first.
        by_index = sorted(ask.cards, key=lambda card: (card.device.index, card.device.uuid))
        return fit_layout(self, replace(ask, cards=by_index), lambda card: unused_card(self, ask, card))

    def grant(self, card: Card, ask: Ask) -> Grant:
        device = card.device
        return Grant(device.uuid, self.key, memory=device.memory, cores=device.cores, index=device.index)

    def node_score(self, node: NodeInfo, pod: PodRequest, grants: tuple[Grants, ...]) -> float:
        """Compare the boards of this pod's cards before and after."""
        if any(card.device.vendor != self.key for card in node.cards):
            return 0.0
        seat = seats([card.device for card in node.cards])
        after = frozenset(seat[grant.uuid] for container in grants for grant in container)
        boards = {place // BOARD for place in after}
        before = frozenset(
            place for card in node.cards if card.used > 0 and (place := seat[card.device.uuid]) // BOARD in boards
        )
        return NODE_SCORES.get(bubbles(after) - bubbles(before), OTHER_NODE_SCORE)

    def annotations(self, bound: Bound) -> dict[str, str]:
        written = super().annotations(bound)
        for container in bound.grants:
            if container:
                written["BAIDU_COM_DEVICE_IDX"] = ",".join(str(grant.index) for grant in container)
        return written


SLICES = (24576, 49152, CARD_MEMORY)
"""MiB; memory is rounded up to one of these"""


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

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        warn_of_count(container, pod, self.names.count)
        asks = super().mutate(container, pod)
        if asks is True and container.text(self.names.memory, limits_only=True) is not None:
            memory = self._slice(container)
            # A value that cannot be rounded stays as written, so the refusal can show it.
            if isinstance(memory, int):
                container.set_both(self.names.memory, memory)
        return asks

    def least_memory(self, annotations: Mapping[str, str]) -> int:
        return 0

    def request(self, resources: Resources) -> Request | BadRequest | None:
        count = cards_asked(resources, self.names.count, unit="cards")
        if count is None or isinstance(count, BadRequest):
            return count
        if resources.text(self.names.memory) is None:
            return Request(vendor=self.key, count=count, memory=CARD_MEMORY, percent=WHOLE_MEMORY, cores=100)
        memory = self._slice(resources)
        if isinstance(memory, BadRequest):
            return memory
        return Request(vendor=self.key, count=count, memory=memory, cores=memory * 100 // CARD_MEMORY)

    def _slice(self, resources: Resources) -> int | BadRequest:
        """The requested memory, rounded up to a slice."""
        memory = memory_of(resources, self.names.memory)
        if isinstance(memory, BadRequest):
            return memory
        found = next((size for size in SLICES if memory <= size), None)
        advice = f"a card has {CARD_MEMORY} MiB, write at most that"
        return found or BadRequest(self.names.memory, str(memory), advice)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return fit_layout(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        grant = self.grant(card, ask)
        return (
            card_checks.refuse_identity(self, ask, card)
            or _refuse_sharing(self, ask, card)
            or refuse_unpaid(ask, card, grant)
            or _refuse_slice(card, grant)
            or grant
        )


def _refuse_sharing(rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    by_slots = card.device.slots > 0
    used = refuse_used(card) if not by_slots and ask.policy.unused_cards_only else None
    return used or card_checks.refuse_sharing(rules, ask, card, by_slots=by_slots)


def _refuse_slice(card: Card, grant: Grant) -> CardMisfit | None:
    device = card.device
    short = card_checks.refuse_memory(card, grant.memory)
    if short is not None:
        return short
    if card.used_memory != card.used * grant.memory:
        return CardMisfit(device.uuid, Reason.CUSTOM_RULE, asked=grant.memory, total=device.memory)
    return card_checks.refuse_cores(card, grant.cores) if device.cores > 0 else None


class KunlunSection(Section, frozen=True, kw_only=True):
    resource_count_name: str = ""
    resource_v_count_name: str = ""
    resource_v_memory_name: str = ""


CHART = KunlunSection(
    resource_count_name="kunlunxin.com/xpu",
    resource_v_count_name="kunlunxin.com/vxpu",
    resource_v_memory_name="kunlunxin.com/vxpu-memory",
)


def build(section: KunlunSection, switches: Switches) -> list[Vendor]:
    slices = ResourceNames(count=section.resource_v_count_name, memory=section.resource_v_memory_name)
    return [Kunlun(section.names), Vxpu(slices)]


FAMILY = Family(title="Kunlun", section="kunlun", chart=CHART, build=build)
