"""Which pods may share an sGPU card, and which of the possible cards is best.

All input is the pods that hold a card now (`Card.tenants`) and the link zones that the node registered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tessera.core.card_checks import Fitting
from tessera.core.devices import Device
from tessera.core.grants import Grant
from tessera.core.node_info import Card
from tessera.core.requests import Constraint
from tessera.vendors.metax.registration import LINK_ZONE, QOS_POLICY

QOS = "metax-tech.com/sgpu-qos-policy"
APP_CLASS = "metax-tech.com/sgpu-app-class"

ONLINE, OFFLINE = APP_CLASSES = ("online", "offline")
BEST_EFFORT = "best-effort"
POLICIES = (BEST_EFFORT, "fixed-share", "burst-share")

LINKED_PAIR = 10
"""score of two cards in one link zone"""


class Company(NamedTuple):
    """How many pods of each app class hold a card."""

    online: int
    offline: int

    @property
    def only_offline(self) -> bool:
        return self.offline > 0 and self.online == 0


def company(card: Card) -> Company:
    classes = Counter(tenant.setting(APP_CLASS) for tenant in card.tenants)
    return Company(online=classes[ONLINE], offline=classes[OFFLINE])


def class_allows(constraint: Constraint, card: Card) -> bool:
    """Pods with an app class share only with each other; an offline pod beside an online one would be suspended."""
    app_class = constraint.setting(APP_CLASS)
    # Unknown users of the card count as pods without a class.
    kinds = {tenant.setting(APP_CLASS) in APP_CLASSES for tenant in card.tenants} or {False}
    if kinds != {app_class in APP_CLASSES}:
        return False
    return not (app_class == OFFLINE and company(card).online)


def qos_allows(constraint: Constraint, card: Card) -> bool:
    """The policy of the pods that hold the card decides, or else the registered one."""
    asked = constraint.setting(QOS) or BEST_EFFORT
    held = {t.setting(QOS) for t in card.tenants if t.setting(APP_CLASS) != ONLINE} - {None, ""}
    return held <= {asked} if held else card.device.custom.get(QOS_POLICY) in (None, "", asked)


def quietest_first(fitting: Fitting) -> Fitting:
    """For an online pod: prefer cards with few online pods, and unused cards over cards with offline pods only."""
    return sorted(fitting, key=lambda pair: (company(pair[0]).only_offline, company(pair[0])))


def quietness(card: Card) -> int:
    """How good a card is for an online pod: 0 or less."""
    present = company(card)
    if present.only_offline:
        return -100 * present.offline
    return -20 * present.online - 2 * present.offline


def linked_first(fitting: Fitting, count: int) -> Fitting:
    """For whole cards: the smallest link zone that holds all, otherwise small zones first and unlinked cards last."""
    sizes = Counter(_zone(card.device) for card, _ in fitting)

    def rank(pair: tuple[Card, Grant]) -> tuple[bool, bool, int, int]:
        zone = _zone(pair[0].device)
        return zone == 0, sizes[zone] < count, sizes[zone], zone

    return sorted(fitting, key=rank)


def linkage(cards: Iterable[Card], chosen: set[str]) -> int:
    """Links inside the chosen set count tenfold, links to unused cards that it breaks count against it."""
    unused = [card.device for card in cards if card.used == 0]
    taken = _pairs(device for device in unused if device.uuid in chosen)
    rest = _pairs(device for device in unused if device.uuid not in chosen)
    return 10 * taken - (_pairs(unused) - taken - rest)


def _zone(device: Device) -> int:
    """0 = not linked."""
    return max(0, int(device.custom.get(LINK_ZONE, 0)))


def _pairs(devices: Iterable[Device]) -> int:
    sizes = Counter(_zone(device) for device in devices)
    return sum(LINKED_PAIR * size * (size - 1) // 2 for zone, size in sizes.items() if zone)
