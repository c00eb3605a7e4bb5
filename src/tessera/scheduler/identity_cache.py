"""What was made of the last few objects, by their identity: equal answers are one object, and are worked on once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class IdentityCache(Generic[T]):
    """Keeps the objects as well, so that no other one gets their identity."""

    def __init__(self, make: Callable[..., T], *, most: int) -> None:
        self._make = make
        self._most = most
        self._known: OrderedDict[tuple[int, ...], tuple[tuple[object, ...], T]] = OrderedDict()

    def of(self, *objects: object) -> T:
        key = tuple(map(id, objects))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = objects, self._make(*objects)
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        return known[1]
