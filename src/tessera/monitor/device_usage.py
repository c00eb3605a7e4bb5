"""How much of each card is in use, as the driver reports it.

An unknown value is None, and a card that cannot be read is left out; neither affects the other cards. Every call may
block: make them from a thread, one at a time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tessera.host.cards import CardError
from tessera.host.nvml.session import NvmlConnection, Session, load_binding, text_of


@dataclass(frozen=True, slots=True)
class CardUtilization:
    index: int
    uuid: str
    name: str
    """of the product, as NVML gives it"""
    memory_bytes: int | None = None
    utilization: int | None = None
    """percent of the last second in which a kernel ran"""
    memory_utilization: int | None = None
    """the same for the memory controller"""


class HostUsage:
    """Reads the cards of this machine. Raises InventoryError if nothing can be read."""

    def __init__(self, driver_root: Path, *, nvml: NvmlConnection | None = None) -> None:
        self._nvml = nvml or NvmlConnection(partial(load_binding, driver_root))

    def read(self) -> tuple[CardUtilization, ...]:
        found = []
        with self._nvml.session() as session:
            for index in range(session.api.nvmlDeviceGetCount()):
                with suppress(CardError):
                    found.append(_read_card(session, index))
        return tuple(found)

    def close(self) -> None:
        self._nvml.close()


def _read_card(session: Session, index: int) -> CardUtilization:
    api = session.api
    with session.about(f"card {index}", "reading its use"):
        handle = api.nvmlDeviceGetHandleByIndex(index)
        memory = session.optional(api.nvmlDeviceGetMemoryInfo, handle)
        rates = session.optional(api.nvmlDeviceGetUtilizationRates, handle)
        return CardUtilization(
            index=index,
            uuid=text_of(api.nvmlDeviceGetUUID(handle)),
            name=text_of(api.nvmlDeviceGetName(handle)),
            memory_bytes=None if memory is None else int(memory.used),
            utilization=None if rates is None else int(rates.gpu),
            memory_utilization=None if rates is None else int(rates.memory),
        )
