"""The events that the driver reports by itself, collected in one NVML event set.

    nothing --listen--> a set --wait fails, MIG mode switched, other cards wanted--> nothing
A set that went away is made again by the next wait, for the same cards. NVML cannot take a card out of a set.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tessera.node.inventory.cards import CardError, CardEvent, InventoryError
from tessera.node.inventory.nvml_session import Handle, Session, text_of

MAX_WAIT_S = 3600.0
"""seconds; NVML counts milliseconds in 32 bits"""

ANY_INSTANCE = 0xFFFFFFFF
"""where the driver does not say which GPU or compute instance is meant"""


class EventSet:
    """Belongs to one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._registered: set[str] = set()
        self._silent = True
        try:
            self._set: Any = session.api.nvmlEventSetCreate()
        except session.api.NVMLError as error:
            raise InventoryError(f"cannot listen for events: {error}") from error

    @property
    def registered(self) -> frozenset[str]:
        return frozenset(self._registered)

    @property
    def is_silent(self) -> bool:
        """Whether no card of the set has events at all: there is nothing to wait for."""
        return self._silent

    def add(self, uuids: Iterable[str]) -> dict[str, str]:
        """Listen to these as well; why one cannot be listened to."""
        problems = {}
        for uuid in uuids:
            if uuid not in self._registered:
                try:
                    self._register(uuid)
                except CardError as error:
                    problems[uuid] = error.problem
        return problems

    def _register(self, uuid: str) -> None:
        session, api = self._session, self._session.api
        handle = session.card(uuid)
        with session.about(uuid, "listening to its events"):
            supported = session.optional(api.nvmlDeviceGetSupportedEventTypes, handle) or 0
            wanted = supported & (
                api.nvmlEventTypeXidCriticalError
                | api.nvmlEventTypeDoubleBitEccError
                | api.nvmlEventTypeSingleBitEccError
            )
            if wanted and self._try_to_register(handle, wanted):
                self._silent = False
        self._registered.add(uuid)

    def _try_to_register(self, handle: Handle, wanted: int) -> bool:
        """False where the card turns out to have no events after all."""
        try:
            self._session.api.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except self._session.api.NVMLError as error:
            if self._session.is_absence(error):
                return False
            raise
        return True

    def wait(self, timeout: float) -> CardEvent | None:
        api = self._session.api
        try:
            data = api.nvmlEventSetWait_v2(self._set, int(1000 * min(max(timeout, 0.0), MAX_WAIT_S)))
        except api.NVMLError as error:
            if error.value == api.NVML_ERROR_TIMEOUT:
                return None
            raise InventoryError(f"waiting for events: {error}") from error
        return self._event(data)

    def _event(self, data: Any) -> CardEvent:
        api = self._session.api
        is_xid = data.eventType == api.nvmlEventTypeXidCriticalError
        return CardEvent(
            uuid=self._uuid(data.device),
            xid=int(data.eventData) if is_xid else None,
            uncorrectable=data.eventType == api.nvmlEventTypeDoubleBitEccError,
            gpu_instance=_instance(data.gpuInstanceId),
            compute_instance=_instance(data.computeInstanceId),
        )

    def _uuid(self, device: Any) -> str | None:
        # A card that falls off the bus reports it, and then no longer knows its name.
        with suppress(self._session.api.NVMLError, UnicodeError):
            return text_of(self._session.api.nvmlDeviceGetUUID(device)) or None
        return None

    def close(self) -> None:
        with suppress(self._session.api.NVMLError):
            self._session.api.nvmlEventSetFree(self._set)


def _instance(number: int) -> int | None:
    return None if number == ANY_INSTANCE else int(number)
