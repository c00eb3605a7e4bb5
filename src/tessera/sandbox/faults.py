"""Faults on purpose, for tests: the next requests that match fail, lose their answer, wait, or are cut off.

Rules are used up in the order in which they were added. Nothing here is random: a test says what goes wrong, and when.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from tessera.sandbox.cluster import Cluster
from tessera.sandbox.kinds import Kind


@dataclass(frozen=True, slots=True)
class Fail:
    """Answers with this status instead of doing anything."""

    status: int
    retry_after_s: int | None = None
    message: str = "injected fault"


@dataclass(frozen=True, slots=True)
class Drop:
    """Cuts the connection instead of doing anything."""


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Does what was asked and cuts the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Waits before doing anything."""

    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Waits for `release`, before or after the effect; `reached` says that a request is waiting."""

    release: asyncio.Event
    reached: asyncio.Event
    after_effect: bool = False


Fault = Fail | Drop | LoseAnswer | Delay | Hold


@dataclass(slots=True)
class _Rule:
    fault: Fault
    method: str
    path: re.Pattern[str]
    left: int


class Faults:
    """The faults still to come, and the ones that happen at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rules: list[_Rule] = []

    def next(self, fault: Fault, *, method: str = "*", path: str = "", times: int = 1) -> None:
        """Plans `fault` for the next `times` requests with this method whose path holds the pattern."""
        self._rules.append(_Rule(fault, method.upper(), re.compile(path), times))

    def clear(self) -> None:
        self._rules.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """The fault that this request meets."""
        for rule in self._rules:
            if rule.method in ("*", method) and rule.path.search(path):
                rule.left -= 1
                if rule.left <= 0:
                    self._rules.remove(rule)
                return rule.fault
        return None

    def cut_watches(self, kind: Kind | None = None) -> int:
        """Resets the connections of running watches; answers how many there were."""
        return self._stop_watches(kind, abort=True)

    def end_watches(self, kind: Kind | None = None) -> int:
        """Ends running watches with a plain end of stream."""
        return self._stop_watches(kind, abort=False)

    def compact(self) -> None:
        """Forgets the past: whoever comes back to watch or to page from an older version gets 410."""
        self._cluster.store.compact()

    def _stop_watches(self, kind: Kind | None, *, abort: bool) -> int:
        watchers = self._cluster.hub.all(kind)
        for watcher in watchers:
            watcher.end(abort=abort)
        return len(watchers)
