"""One start of NVML, from init to shutdown, with its errors made ours.

NVML counts its starts and ends with the last session, so sessions of several threads do not disturb each other. Handles
are asked for anew each time: one that was kept may outlive its card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tessera.node.inventory.cards import CardError, InventoryError
from tessera.node.inventory.nvml_library import Binding

Handle = Any


@dataclass(frozen=True, slots=True)
class Session:
    """An NVML that answers."""

    api: Binding

    def card(self, uuid: str) -> Handle:
        with self.about(uuid, "finding the card"):
            return self.api.nvmlDeviceGetHandleByUUID(uuid)

    @contextmanager
    def about(self, uuid: str, doing: str) -> Iterator[None]:
        """Whatever NVML refuses meanwhile becomes a CardError of this card."""
        try:
            yield
        except (self.api.NVMLError, UnicodeError) as error:
            raise CardError(uuid, f"{doing}: {error}") from error

    def optional(self, call: Callable[..., Any], *args: Any) -> Any:
        """What a call returns; None where this card or this driver does not know such a thing."""
        try:
            return call(*args)
        except self.api.NVMLError as error:
            if self.is_absence(error):
                return None
            raise

    def is_absence(self, error: BaseException) -> bool:
        absences: tuple[int, ...] = (self.api.NVML_ERROR_NOT_SUPPORTED, self.api.NVML_ERROR_FUNCTION_NOT_FOUND)
        return _code(error) in absences

    def is_not_found(self, error: BaseException) -> bool:
        return bool(_code(error) == self.api.NVML_ERROR_NOT_FOUND)

    def is_over(self, error: BaseException | None) -> bool:
        """Whether only another session can answer again, e.g. because the driver was replaced."""
        return _code(error) in (
            self.api.NVML_ERROR_UNINITIALIZED,
            self.api.NVML_ERROR_DRIVER_NOT_LOADED,
            self.api.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        )

    def close(self) -> None:
        with suppress(self.api.NVMLError):
            self.api.nvmlShutdown()


def open_session(load: Callable[[], Binding]) -> Session:
    """Raises InventoryError, e.g. while there is no driver yet."""
    api = load()
    try:
        api.nvmlInit()
    except api.NVMLError as error:
        raise InventoryError(f"cannot start NVML: {error}") from error
    return Session(api)


class Line:
    """Questions that are asked one after the other, in one session while it lasts.

    closed --first question--> open --it can answer nothing more, or `drop`--> closed
    """

    def __init__(self, load: Callable[[], Binding]) -> None:
        self._load = load
        self._session: Session | None = None

    @contextmanager
    def asking(self) -> Iterator[Session]:
        """Raises InventoryError only."""
        session = self._session
        if session is None:
            session = self._session = open_session(self._load)
        try:
            yield session
        except session.api.NVMLError as error:
            self._judge(session, error)
            raise InventoryError(f"NVML: {error}") from error
        except InventoryError as error:
            self._judge(session, error.__cause__)
            raise

    def _judge(self, session: Session, error: BaseException | None) -> None:
        if session.is_over(error):
            self.drop()

    def drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def text_of(value: str | bytes) -> str:
    """Structs of NVML hold bytes where its functions give text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _code(error: BaseException | None) -> int | None:
    return getattr(error, "value", None)
