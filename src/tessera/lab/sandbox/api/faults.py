"""Faults on purpose, for tests: the next requests that match fail, lose their answer, wait, or are cut off.

Rules are used up in the order in which they were added. Nothing here is random: a test says what goes wrong, and when.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from tessera.lab.sandbox.api.cluster import ApiState
from tessera.lab.sandbox.api.kinds import ResourceKind
from tessera.lab.sandbox.api.watches import Watcher


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
    agent: re.Pattern[str]
    left: int


class ApiFaults:
    """The faults still to come, and the ones that happen at once."""

    def __init__(self, cluster: ApiState) -> None:
        self._cluster = cluster
        self._rules: list[_Rule] = []

    def next(self, fault: Fault, *, method: str = "*", path: str = "", agent: str = "", times: int = 1) -> None:
        """Plans `fault` for the next `times` requests with this method whose path and User-Agent hold the patterns."""
        self._rules.append(_Rule(fault, method.upper(), re.compile(path), re.compile(agent), times))

    def clear(self) -> None:
        self._rules.clear()

    def take(self, method: str, path: str, agent: str = "") -> Fault | None:
        """The fault that this request meets."""
        for rule in self._rules:
            if rule.method in ("*", method) and rule.path.search(path) and rule.agent.search(agent):
                rule.left -= 1
                if rule.left <= 0:
                    self._rules.remove(rule)
                return rule.fault
        return None

    def cut_watches(self, kind: ResourceKind | None = None, *, agent: str = "") -> int:
        """Resets the connections of running watches; answers how many there were."""
        return self._stop_watches(kind, agent, abort=True)

    def end_watches(self, kind: ResourceKind | None = None, *, agent: str = "") -> int:
        """Ends running watches with a plain end of stream."""
        return self._stop_watches(kind, agent, abort=False)

    def hold_watches(self, kind: ResourceKind | None = None, *, agent: str = "") -> Callable[[], None]:
        """Running watches fall behind: nothing more reaches them until what is returned here is called."""
        held = self._watchers(kind, agent)
        for watcher in held:
            watcher.hold()

        def release() -> None:
            for watcher in held:
                watcher.go_on()

        return release

    def compact(self) -> None:
        """Forgets the past: whoever comes back to watch or to page from an older version gets 410."""
        self._cluster.store.compact()

    def _stop_watches(self, kind: ResourceKind | None, agent: str, *, abort: bool) -> int:
        watchers = self._watchers(kind, agent)
        for watcher in watchers:
            watcher.end(abort=abort)
        return len(watchers)

    def _watchers(self, kind: ResourceKind | None, agent: str) -> list[Watcher]:
        return [watcher for watcher in self._cluster.hub.all(kind) if re.search(agent, watcher.agent)]
