"""The base of the handlers of informers: where the objects of one kind go, and whether their first list is complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class InformerHandler(ABC, Generic[T]):
    """`has_synced` is taken back while everything is read again; decisions may wait for it."""

    def __init__(self, on_synced: Callable[[], None] | None = None) -> None:
        """`on_synced`: the first list is complete, or one that everything was read again with."""
        self._on_synced = on_synced
        self.has_synced = False

    @abstractmethod
    def put(self, key: str, found: T, /) -> None: ...

    @abstractmethod
    def drop(self, key: str) -> None: ...

    def synced(self) -> None:
        is_first, self.has_synced = not self.has_synced, True
        if is_first and self._on_synced is not None:
            self._on_synced()
