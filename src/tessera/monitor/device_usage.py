"""How much of each card is in use, as the driver says it.

What a card does not know is None, and a card that cannot be asked is left out; neither takes its neighbours away. Every
call may block: they are made from a thread, one at a time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tessera.node.inventory.cards import CardError
from tessera.node.inventory.nvml_library import load_binding
from tessera.node.inventory.nvml_session import Line, Session, text_of


@dataclass(frozen=True, slots=True)
class CardUse:
    index: int
    uuid: str
    name: str
    """of the product, as NVML gives it"""
    memory_bytes: int | None = None
    utilization: int | None = None
    """percent of the last second in which a kernel ran"""
    memory_utilization: int | None = None
    """the same for the memory controller"""


class HostUse:
    """The cards of this machine. Raises InventoryError while nothing can be asked."""

    def __init__(self, driver_root: Path, *, line: Line | None = None) -> None:
        self._line = line or Line(partial(load_binding, driver_root))

    def read(self) -> tuple[CardUse, ...]:
        found = []
        with self._line.asking() as session:
            for index in range(session.api.nvmlDeviceGetCount()):
                with suppress(CardError):
                    found.append(_read_card(session, index))
        return tuple(found)

    def close(self) -> None:
        self._line.drop()


def _read_card(session: Session, index: int) -> CardUse:
    api = session.api
    with session.about(f"card {index}", "reading its use"):
        handle = api.nvmlDeviceGetHandleByIndex(index)
        memory = session.optional(api.nvmlDeviceGetMemoryInfo, handle)
        rates = session.optional(api.nvmlDeviceGetUtilizationRates, handle)
        return CardUse(
            index=index,
            uuid=text_of(api.nvmlDeviceGetUUID(handle)),
            name=text_of(api.nvmlDeviceGetName(handle)),
            memory_bytes=None if memory is None else int(memory.used),
            utilization=None if rates is None else int(rates.gpu),
            memory_utilization=None if rates is None else int(rates.memory),
        )
