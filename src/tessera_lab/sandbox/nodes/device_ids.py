"""The devices that kubelet counts: every card is offered several times, as `<uuid>-<number>`.

kubelet chooses freely among free and healthy ids, unless the plugin prefers some; the card of an id says nothing about
the slice. Ids of an init container are reused by later containers of the pod.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from tessera.core.devices import Device

Preference = Callable[[Sequence[str], int], Sequence[str] | None]
"""the plugin's choice among these ids, or None if it has no preference"""


class Unavailable(Exception):
    """Fewer devices are free than a container requests."""


class DeviceIds:
    """The ids of one node and which pods hold them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._offered: list[str] = []
        self._held: dict[str, str] = {}
        """id -> pod"""
        self._reusable: dict[str, list[str]] = {}
        """pod -> ids that its init containers no longer need"""

    def offer(self, cards: Iterable[Device]) -> None:
        """Sets what the plugin lists now; nothing if it is down."""
        self._offered = [replica for card in cards if card.healthy for replica in replicas(card)]

    @property
    def offered(self) -> int:
        return len(self._offered)

    def take(self, uid: str, count: int, *, resource: str, prefer: Preference, init: bool = False) -> tuple[str, ...]:
        """Ids for one container of the pod."""
        reused = self._reusable.get(uid, [])[:count]
        free = [each for each in self._offered if each not in self._held]
        wanted = count - len(reused)
        if wanted > len(free):
            raise Unavailable(
                f"requested number of devices unavailable for {resource}. Requested: {wanted}, Available: {len(free)}"
            )
        chosen = list(prefer(free, wanted) or ()) if wanted and not reused else []
        if len(chosen) != wanted:
            chosen = self._rng.sample(free, wanted)
        self._held.update(dict.fromkeys(chosen, uid))
        taken = (*reused, *chosen)
        again = [each for each in self._reusable.get(uid, ()) if each not in reused]
        self._reusable[uid] = [*again, *taken] if init else again
        return taken

    def release(self, uid: str) -> None:
        """Frees the ids of a pod that has ended."""
        self._reusable.pop(uid, None)
        self._held = {each: holder for each, holder in self._held.items() if holder != uid}


def replicas(card: Device) -> list[str]:
    return [f"{card.uuid}-{number}" for number in range(card.slots)]


def card_of(replica: str) -> str:
    """The card's uuid."""
    return replica.rpartition("-")[0]
