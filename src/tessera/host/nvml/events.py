"""Listens for the events that the driver reports: XIDs and ECC errors.

    nothing --listen--> event set --(wait failed, MIG mode switched, other cards wanted)--> nothing

The next wait makes a lost event set again for the same cards. NVML cannot remove a card from a set. One thread does all
the listening; other threads may only ask for a new start (`renew`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tessera.host.cards import CardError, CardEvent, InventoryError
from tessera.host.nvml.session import Binding, Handle, NvmlConnection, Session, text_of

MAX_WAIT_S = 3600.0
"""seconds; NVML counts milliseconds in 32 bits"""

ANY_INSTANCE = 0xFFFFFFFF
"""if the driver does not say which GPU or compute instance is meant"""


class EventSet:
    """An NVML event set of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.registered: set[str] = set()
        self.is_silent = True
        """whether no card of the set supports events, so there is nothing to wait for"""
        try:
            self._set: Any = session.api.nvmlEventSetCreate()
        except session.api.NVMLError as error:
            raise InventoryError(f"cannot listen for events: {error}") from error

    def add(self, uuids: Iterable[str]) -> dict[str, str]:
        """Adds cards. Returns why a card cannot be listened to, by uuid."""
        problems = {}
        for uuid in uuids:
            if uuid not in self.registered:
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
                self.is_silent = False
        self.registered.add(uuid)

    def _try_to_register(self, handle: Handle, wanted: int) -> bool:
        """Returns False if the card turns out not to support events."""
        try:
            self._session.api.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except self._session.api.NVMLError as error:
            if self._session.is_unsupported(error):
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
        # A card that falls off the bus reports that, and then has no uuid any more.
        with suppress(self._session.api.NVMLError, UnicodeError):
            return text_of(self._session.api.nvmlDeviceGetUUID(device)) or None
        return None

    def close(self) -> None:
        with suppress(self._session.api.NVMLError):
            self._session.api.nvmlEventSetFree(self._set)


def _instance(number: int) -> int | None:
    return None if number == ANY_INSTANCE else int(number)


class NvmlListener:
    """Listens to a set of cards from one thread."""

    def __init__(self, load: Callable[[], Binding]) -> None:
        self._nvml = NvmlConnection(load)
        self._wanted: tuple[str, ...] = ()
        self._events: EventSet | None = None
        self._renewing = False
        self._waiting = False
        self._closed = threading.Event()

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        self._renew_if_asked()
        self._wanted = tuple(uuids)
        if self._events is not None and not self._events.registered.issubset(uuids):
            # NVML cannot take a card out of a set.
            self._forget()
        with self._nvml.session() as session:
            return self._set(session).add(uuids)

    def wait(self, timeout: float) -> CardEvent | None:
        self._renew_if_asked()
        with self._nvml.session() as session:
            events = self._set(session)
            if not events.is_silent:
                return self._wait(events, timeout)
        self._closed.wait(timeout)
        return None

    def _wait(self, events: EventSet, timeout: float) -> CardEvent | None:
        self._waiting = True
        try:
            return events.wait(timeout)
        except InventoryError:
            self._forget()
            raise
        finally:
            self._waiting = False

    def renew(self) -> None:
        """Makes the next call start from scratch. May be called from any thread."""
        self._renewing = True

    def close(self) -> None:
        self._wanted = ()
        self._closed.set()
        # Never free a set that a thread waits on: the process ends soon, and the set with it.
        if not self._waiting:
            self._forget()
            self._nvml.close()

    def _renew_if_asked(self) -> None:
        if self._renewing:
            self._renewing = False
            self._forget()
            self._nvml.close()

    def _set(self, session: Session) -> EventSet:
        if self._events is None:
            self._events = EventSet(session)
            # The next scan or `listen` reports a card that cannot be listened to any more.
            self._events.add(self._wanted)
        return self._events

    def _forget(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()
