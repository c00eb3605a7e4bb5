"""What happened in one run, in the order in which it was recorded: one JSON object per line.

The state of the API comes from etcd itself, in the order of its revisions, so that no fault hides or reorders any of
it. Calls, writes and watches are recorded where they pass through a proxy: an event is recorded before it is passed on,
so that a cause always comes before its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec


class Base(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    at: float
    """seconds since the run began"""


class Card(msgspec.Struct, frozen=True):
    slots: int
    memory: int
    """MiB"""
    cores: int


class Ask(msgspec.Struct, frozen=True):
    """What one container asks for."""

    count: int
    memory: int | None
    """MiB per card; None is the whole card"""
    cores: int
    is_init: bool = False


# -- the API, in the order of revisions


class NodeShown(Base, frozen=True, kw_only=True, tag="node"):
    revision: int
    name: str
    cards: dict[str, Card]
    is_hami: bool
    """its plugin is HAMi's, which may fail a pod when it cannot reach the apiserver"""


class Gang(msgspec.Struct, frozen=True):
    """What a pod says about its gang."""

    name: str
    """with its namespace"""
    size: int
    minimum: int
    """members that must be bound together"""


class PodShown(Base, frozen=True, kw_only=True, tag="pod"):
    revision: int
    key: str
    uid: str
    asks: list[Ask]
    """init containers first"""
    node: str = ""
    grants: str = ""
    """the annotation, as it is"""
    ended: list[int] = []
    """init containers that have ended for good"""
    phase: str = ""
    message: str = ""
    """why a pod ended"""
    priority: int = 0
    gang: Gang | None = None
    is_leaving: bool = False
    """it has a deletionTimestamp"""


class PodGone(Base, frozen=True, kw_only=True, tag="gone"):
    revision: int
    key: str
    uid: str


class LeaseShown(Base, frozen=True, kw_only=True, tag="lease"):
    """Recorded when the holder changes."""

    revision: int
    holder: str


# -- the schedulers, as their proxies see them


class FilterAnswered(Base, frozen=True, kw_only=True, tag="filter"):
    replica: str
    uid: str
    nodes: list[str]
    error: str = ""


class BindCalled(Base, frozen=True, kw_only=True, tag="bind"):
    replica: str
    uid: str
    node: str


class BindAnswered(Base, frozen=True, kw_only=True, tag="bind-answer"):
    replica: str
    uid: str
    error: str = ""


class WriteSent(Base, frozen=True, kw_only=True, tag="write"):
    """A replica sent a Binding; it may be held before it is passed on."""

    replica: str
    uid: str
    node: str
    grants: str
    version: str = ""
    """the resourceVersion that it is conditional on"""


class WriteAnswered(Base, frozen=True, kw_only=True, tag="write-answer"):
    replica: str
    uid: str
    node: str
    status: int
    """0 if there was no answer"""
    held_s: float = 0.0


class EvictionSent(Base, frozen=True, kw_only=True, tag="evict"):
    """A replica asked for an eviction. Dry runs are not recorded."""

    replica: str
    uid: str
    key: str


class EvictionAnswered(Base, frozen=True, kw_only=True, tag="evict-answer"):
    replica: str
    uid: str
    status: int
    """0 if there was no answer"""


class EventSeen(Base, frozen=True, kw_only=True, tag="watch"):
    """A watch showed a replica a change of a pod."""

    replica: str
    uid: str
    type: str
    revision: str


# -- the run


class ClientActed(Base, frozen=True, kw_only=True, tag="client"):
    client: str
    action: str
    key: str
    status: int


class FaultBegan(Base, frozen=True, kw_only=True, tag="fault"):
    kind: str
    target: str = ""


class FaultEnded(Base, frozen=True, kw_only=True, tag="fault-end"):
    kind: str
    target: str = ""
    detail: str = ""
    """what it chose to do"""


class StormBegan(Base, frozen=True, kw_only=True, tag="storm"):
    """Faults may happen, and clients create pods."""


class CalmBegan(Base, frozen=True, kw_only=True, tag="calm"):
    """No fault happens, and pods are only deleted."""


class RestReached(Base, frozen=True, kw_only=True, tag="rest"):
    """What the leader counts on each card once nothing is under way: slots, MiB, cores."""

    replica: str
    use: dict[str, tuple[int, int, int]]
    wrong_slices: list[str] = []
    """containers that see something else than their pod was granted"""
    nominations: int = 0
    """that the leader has"""
    planned_gangs: int = 0
    """for which it holds places"""


class RunEnded(Base, frozen=True, kw_only=True, tag="end"):
    """The last event of a history that is complete."""


Event = (
    NodeShown
    | PodShown
    | PodGone
    | LeaseShown
    | FilterAnswered
    | BindCalled
    | BindAnswered
    | WriteSent
    | WriteAnswered
    | EvictionSent
    | EvictionAnswered
    | EventSeen
    | ClientActed
    | FaultBegan
    | FaultEnded
    | StormBegan
    | CalmBegan
    | RestReached
    | RunEnded
)

_decoder = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def encode(event: Event) -> str:
    return _encoder.encode(event).decode()


class History:
    """Appends to a file as things happen, so that a run that is killed leaves its history behind."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock
        self._start = clock()
        self._file = path.open("wb")
        self.events: list[Event] = []

    @property
    def now(self) -> float:
        """Seconds since the run began, for `at`."""
        return round(self._clock() - self._start, 4)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self._file.write(_encoder.encode(event) + b"\n")

    def flush(self) -> None:
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read(lines: Iterable[bytes]) -> Iterator[Event]:
    """A kept history; a last line that was cut off is left out."""
    for line in lines:
        if line.endswith(b"\n"):
            yield _decoder.decode(line)
