"""What of a scheduler's memory still names a pod, a claim or a gang after all of them have gone.

Looks through every object that can be reached from the engine, so a new record is found without being named here.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

from tessera.scheduler.engine import Engine

NAMES = re.compile(r"(?:[uc][0-9]{5}|gang/.*|(?:blue|red)/(?!q).*)")
"""uids of pods and claims, holds of gangs, and namespaced names; quotas stay"""
CACHES = frozenset(
    {
        ("RequestReader", "_known"),
        ("Selector", "_shapes"),
        ("DemandTracker", "_uncounted"),
        ("ClaimCoordinator", "_waking"),
    }
)
"""that are bounded, and keep what was asked last"""
OTHERS = ("tests.", "asyncio", "tessera.scheduler.journal")
"""modules of objects that are not the engine's own: the journal keeps what has happened"""


def leftovers(engine: Engine) -> dict[str, set[str]]:
    """Names by the path to the record that has them."""
    found: dict[str, set[str]] = {}
    seen: set[int] = set()
    left: list[tuple[str, object]] = [("engine", engine)]
    while left:
        path, one = left.pop()
        if isinstance(one, str):
            if NAMES.fullmatch(one):
                found.setdefault(path, set()).add(one)
        elif id(one) not in seen and not type(one).__module__.startswith(OTHERS):
            seen.add(id(one))
            left += ((f"{path}{step}", part) for step, part in _parts(one))
    return found


def _parts(one: Any) -> Iterator[tuple[str, object]]:
    if isinstance(one, Mapping):
        yield from (("{key}", key) for key in one)
        yield from (("{}", value) for value in one.values())
    elif isinstance(one, list | tuple | set | frozenset | deque):
        yield from (("[]", part) for part in one)
    elif isinstance(one, MethodType):
        yield "", one.__self__
    elif type(one).__module__.startswith("tessera."):
        slots = [
            slot for kind in type(one).__mro__ for slot in (*_own(kind, "__slots__"), *_own(kind, "__match_args__"))
        ]
        for name in {*getattr(one, "__dict__", ()), *slots}:
            if (type(one).__name__, name) not in CACHES and hasattr(one, name):
                yield f".{name}", getattr(one, name)


def _own(kind: type, name: str) -> tuple[str, ...]:
    found = kind.__dict__.get(name, ())
    return (found,) if isinstance(found, str) else tuple(found) if isinstance(found, tuple | list) else ()
