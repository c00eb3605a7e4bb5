"""Injected faults for tests: the next matching requests fail, lose their response, wait, or are cut off.

Rules are used up in the order in which they were added. Nothing is random: a test says what goes wrong, and when.

The log holds the latest requests, for tests that count API calls.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tessera_lab.sandbox.api.api_state import ApiState
from tessera_lab.sandbox.api.kinds import ResourceKind
from tessera_lab.sandbox.api.lists_and_watches import Watcher

KEPT = 10_000
"""how many requests are kept"""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request and the status of its response; 0 if the connection was cut."""

    method: str
    path: str
    query: str
    status: int
    agent: str = ""
    """the User-Agent"""

    @property
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD")


class RequestLog:
    """The latest requests, oldest first. A watch is added when it ends."""

    def __init__(self) -> None:
        self._seen: deque[LoggedRequest] = deque(maxlen=KEPT)

    def note(self, seen: LoggedRequest) -> None:
        self._seen.append(seen)

    def clear(self) -> None:
        self._seen.clear()

    def __iter__(self) -> Iterator[LoggedRequest]:
        return iter(tuple(self._seen))

    def __len__(self) -> int:
        return len(self._seen)


@dataclass(frozen=True, slots=True)
class Fail:
    """Answers with this status; the request has no effect."""

    status: int
    retry_after_s: int | None = None
    message: str = "injected fault"


@dataclass(frozen=True, slots=True)
class Drop:
    """Cuts the connection; the request has no effect."""


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """Carries out the request, then cuts the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Waits before the request is handled."""

    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """Waits for `release`, before or after the effect; `reached` is set while a request waits."""

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
    """Faults planned for coming requests, and faults of running watches."""

    def __init__(self, cluster: ApiState) -> None:
        self._cluster = cluster
        self._rules: list[_Rule] = []

    def next(self, fault: Fault, *, method: str = "*", path: str = "", agent: str = "", times: int = 1) -> None:
        """Plans `fault` for the next `times` requests with this method, path and User-Agent."""
        self._rules.append(_Rule(fault, method.upper(), re.compile(path), re.compile(agent), times))

    def clear(self) -> None:
        self._rules.clear()

    def take(self, method: str, path: str, agent: str = "") -> Fault | None:
        """The fault planned for this request, if any."""
        for rule in self._rules:
            if rule.method in ("*", method) and rule.path.search(path) and rule.agent.search(agent):
                rule.left -= 1
                if rule.left <= 0:
                    self._rules.remove(rule)
                return rule.fault
        return None

    def cut_watches(self, kind: ResourceKind | None = None, *, agent: str = "") -> int:
        """Resets the connections of running watches; returns how many there were."""
        return self._stop_watches(kind, agent, abort=True)

    def end_watches(self, kind: ResourceKind | None = None, *, agent: str = "") -> int:
        """Ends running watches with a plain end of stream."""
        return self._stop_watches(kind, agent, abort=False)

    def hold_watches(self, kind: ResourceKind | None = None, *, agent: str = "") -> Callable[[], None]:
        """Holds back all events of running watches until the returned function is called."""
        held = self._watchers(kind, agent)
        for watcher in held:
            watcher.hold()

        def release() -> None:
            for watcher in held:
                watcher.go_on()

        return release

    def compact(self) -> None:
        """Forgets past changes: a watch or a page from an older version gets 410."""
        self._cluster.store.compact()

    def _stop_watches(self, kind: ResourceKind | None, agent: str, *, abort: bool) -> int:
        watchers = self._watchers(kind, agent)
        for watcher in watchers:
            watcher.end(abort=abort)
        return len(watchers)

    def _watchers(self, kind: ResourceKind | None, agent: str) -> list[Watcher]:
        return [watcher for watcher in self._cluster.hub.all(kind) if re.search(agent, watcher.agent)]
