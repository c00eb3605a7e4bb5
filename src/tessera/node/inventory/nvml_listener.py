"""Listening to cards, for one thread of its own: nobody else touches what it waits for.

Others may ask for a new start (`renew`); it is made by the next call. An event set that broke down is made again, for
the same cards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tessera.node.inventory.cards import CardEvent, InventoryError
from tessera.node.inventory.nvml_events import EventSet
from tessera.node.inventory.nvml_library import Binding
from tessera.node.inventory.nvml_session import Line, Session


class NvmlListener:
    """The events of some cards."""

    def __init__(self, load: Callable[[], Binding]) -> None:
        self._line = Line(load)
        self._wanted: tuple[str, ...] = ()
        self._events: EventSet | None = None
        self._renewing = False
        self._waiting = False
        self._closed = threading.Event()

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        self._renew_if_asked()
        self._wanted = tuple(uuids)
        if self._events is not None and not self._events.registered <= set(uuids):
            # NVML cannot take a card out of a set.
            self._forget()
        with self._line.asking() as session:
            return self._set(session).add(uuids)

    def wait(self, timeout: float) -> CardEvent | None:
        self._renew_if_asked()
        with self._line.asking() as session:
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
        """Let the next call begin with nothing. From any thread."""
        self._renewing = True

    def close(self) -> None:
        self._wanted = ()
        self._closed.set()
        # What somebody still waits for must not be freed under them: the process ends soon, and the set with it.
        if not self._waiting:
            self._forget()
            self._line.drop()

    def _renew_if_asked(self) -> None:
        if self._renewing:
            self._renewing = False
            self._forget()
            self._line.drop()

    def _set(self, session: Session) -> EventSet:
        if self._events is None:
            self._events = EventSet(session)
            # A card that cannot be listened to any more is a matter of the next scan or `listen`.
            self._events.add(self._wanted)
        return self._events

    def _forget(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()
