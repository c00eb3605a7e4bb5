"""Which Kunlun cards may be granted together: the links of a board with eight cards.

A board has two wings of four cards; inside a wing all cards are linked, between the wings only the pairs and groups
below. Cards sit on seats 0 to 7, the first four are the left wing. A node with fewer cards has empty seats, one with
more has several boards: a grant never spans boards. The vendors of whole cards and of slices decide which are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.core.fit.card_checks import verdict
from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grants
from tessera.core.model.misfits import Misfit, Reason
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import ContainerDraft, PodDraft
from tessera.vendors.parts.card_choice import Judge, all_as, judge_all, pays_together

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
