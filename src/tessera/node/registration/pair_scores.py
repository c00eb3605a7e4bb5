"""Pair scores of the registered cards, asked of the hardware only when the cards changed.

A card that cannot say how it is linked scores 0 with every other one. Hardware that cannot be asked at all leaves the
scores as they are on the node and is asked again in the next round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from tessera.core.devices import Device
from tessera.node.inventory.cards import CardError, InventoryError, Links
from tessera.node.inventory.links import PairScores, pair_scores

log = structlog.get_logger(__name__)

AskLinks = Callable[[Sequence[str]], Awaitable[Mapping[tuple[str, str], Links]]]
"""links between these cards; raises InventoryError"""


class Scoring:
    """Remembers the last answer."""

    def __init__(self, ask: AskLinks) -> None:
        self._ask = ask
        self._of: tuple[Device, ...] | None = None
        self._last: PairScores | None = None

    async def scores(self, devices: tuple[Device, ...]) -> PairScores | None:
        """None where there are none to be had now."""
        if devices != self._of:
            self._of, self._last = None, None
            links = await self._links([device.uuid for device in devices])
            if links is None:
                return None
            self._last = pair_scores([device.uuid for device in devices], links)
            self._of = devices
        return self._last

    async def _links(self, uuids: Sequence[str]) -> Mapping[tuple[str, str], Links] | None:
        asked = list(uuids)
        while asked:
            try:
                return await self._ask(asked)
            except CardError as error:
                log.warning("card does not say how it is linked", card=error.uuid, problem=error.problem)
                if error.uuid not in asked:
                    return None
                asked.remove(error.uuid)
            except InventoryError as error:
                log.warning("links between cards cannot be read", problem=str(error))
                return None
        return {}
