"""Which Kunlun cards may be granted together: the links of a board with eight cards.

A board has two wings of four cards; inside a wing all cards are linked, between the wings only the pairs and groups
below. Cards sit on seats 0 to 7, the first four are the left wing. A node with fewer cards has empty seats, one with
more has several boards: a grant never spans boards. The caller decides which seats are free.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.devices import Device

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
