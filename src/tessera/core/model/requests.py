"""What pods ask for, parsed once and independent of Kubernetes objects.

`PodRequest.shape` is everything that decides where a pod fits: two pods of equal shape get the same answer from the
same ledger, so answers can be cached by shape. It must never hold an identity (uid, name, namespace).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property, lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, Protocol

from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.devices import MigSlot, Published

WHOLE_CARD_CORES = 100
"""a request for this many cores (or more) means the whole card, whatever the card's own total is"""

CLAIM_SEPARATOR = ":"
"""between claim and request in the name under which a request of a claim is placed; no name in the API has it"""
MAX_CONTAINERS = 512
"""of a pod, init containers included; an apiserver accepts tens of thousands, but no kubelet runs so many"""
MAX_REQUESTS = 16
"""for devices in one pod, as many as the largest nodes have cards: each is judged on every card of the cluster, which
takes half a millisecond with 40,000 cards, and three with the policy `fragmentation`"""
MAX_WORDS = 256
"""models and uuids in a pod's annotations, of one vendor: each is compared with every card"""
MAX_ANNOTATION = 16 << 10
"""characters of an annotation that is read from a pod; enough for `MAX_WORDS` uuids of 41 characters"""


@lru_cache(maxsize=256)
def names_word(text: str, word: str) -> bool:
    """Whether a word stands in a text, with no letter or digit beside it: `mig` in `mps,mig`, but not in `migg`.

    HAMi looks for the letters alone, and gives a MIG instance to a pod that misspelt another mode.
    """
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text) is not None


def claim_and_request(container: str) -> tuple[str, str]:
    """The claim and its request that a name of `ContainerRequest` stands for; two empty texts for a container."""
    claim, separator, request = container.partition(CLAIM_SEPARATOR)
    return (claim, request) if separator else ("", "")


def container_title(container: str) -> str:
    """What a name of `ContainerRequest` is called in sentences."""
    claim, request = claim_and_request(container)
    return f"claim {claim}, request {request}" if claim else f"container {container}"


def refuse_container_count(count: int) -> str:
    """Why a pod with so many containers is refused, at admission and at filter; empty if it is not."""
    return f"{count} containers in one pod; at most {MAX_CONTAINERS}" if count > MAX_CONTAINERS else ""


class Role(Enum):
    """How a container's life overlaps with the others of its pod."""

    INIT = "init"
    """runs alone, before the app containers"""
    SIDECAR = "sidecar"
    """an init container with restartPolicy Always: runs from its start to the end of the pod"""
    APP = "app"
    CLAIM = "claim"
    """no container, but a request of a ResourceClaim: held from before the first container to the end of the pod"""


class FilterAnswer(NamedTuple):
    """What a filter says of one card."""

    accepts: bool
    cost: int
    """units of work, of about a tenth of a microsecond; it depends on the filter and the card alone"""
    is_too_costly: bool = False
    """it would be more than a filter may do for one card"""


class CardFilter(Protocol):
    """Which of the cards that are published for claims a request accepts. Equal ones accept the same cards."""

    @property
    def reads_own(self) -> bool:
        """Whether the answer depends on what no two cards have in common (`Published.own`)."""

    def reads(self, published: Published) -> Hashable:
        """What the answer depends on: cards of which it is equal have the same answer."""

    def answer(self, published: Published) -> FilterAnswer: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Constraint:
    """Which cards of one vendor a pod accepts. Empty tuples constrain nothing."""

    use_models: tuple[str, ...] = ()
    """lower-case substrings, one of which must occur in the model"""
    avoid_models: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    mode: str | None = None
    """the pod's mode annotation; a card whose mode it does not name is refused"""
    extra: tuple[tuple[str, str], ...] = ()
    """further settings that only the vendor's own rules read, sorted by name"""
    filter: CardFilter | None = None
    """set for claims, which get published cards only"""
    instances: tuple[tuple[str, MigSlot], ...] = ()
    """with their uuids: the only ones on cards in MIG mode. Set for pods that take what is held for them"""

    @property
    def names_uuids(self) -> bool:
        return bool(self.use_uuids or self.avoid_uuids)

    @property
    def words(self) -> int:
        """Models and uuids that are compared with a card."""
        return len(self.use_models) + len(self.avoid_models) + len(self.use_uuids) + len(self.avoid_uuids)

    def names_mode(self, mode: str) -> bool:
        """Whether the mode annotation names this mode, alone or among others."""
        return self.mode is not None and names_word(self.mode, mode)

    def setting(self, name: str) -> str | None:
        return next((value for key, value in self.extra if key == name), None)


UNCONSTRAINED = Constraint()


@dataclass(frozen=True, slots=True)
class Request:
    """What one container or claim asks of one vendor. Every amount is per card."""

    vendor: str
    count: int
    memory: int = 0
    """MiB; 0 where `percent` decides"""
    percent: int = 0
    """per cent of each card's memory; 0 = not given"""
    cores: int = 0
    """per cent units; `WHOLE_CARD_CORES` asks for the card alone"""
    accepts: Constraint | None = None
    """set for claims: which cards, instead of what the pod's annotations say"""

    @property
    def is_admin(self) -> bool:
        """A claim that asks for no part of its cards: an administrator's access, whatever is in use of them."""
        return self.accepts is not None and not self.memory and not self.percent

    @property
    def shares_cores(self) -> bool:
        """It asks for no cores: it shares those that are left."""
        return self.cores == 0

    def memory_on(self, total: int) -> int:
        """MiB this request takes on a card of `total` MiB: the one place where the ways to ask are resolved."""
        return self.memory if self.memory > 0 else total * self.percent // 100

    def cores_on(self, total: int) -> int:
        """Cores this request takes on a card of `total`: asking for the whole card means the card's own total."""
        return total if self.cores >= min(WHOLE_CARD_CORES, total) > 0 else self.cores


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container and what it asks, at most one request per vendor, sorted by vendor."""

    name: str
    role: Role = Role.APP
    requests: tuple[Request, ...] = ()


class AttributeMatch(NamedTuple):
    """A constraint of a claim: the cards of some requests have one value of an attribute, or all different ones."""

    attribute: str
    """with its domain"""
    positions: tuple[int, ...]
    """of the requests, as in `PodRequest.containers`"""
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """How much slots, cores and memory count in a device's score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


@dataclass(frozen=True, slots=True)
class HostRequest:
    """What a pod asks of its node beside devices. kube-scheduler decides about it; forecasts of demand count it."""

    cpu: int = 0
    """thousandths of a core"""
    memory: int = 0
    """MiB"""


class ShapeKey:
    """A dictionary key whose hash is computed once."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: Hashable) -> None:
        self._key = key
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeKey) and self._hash == other._hash and self._key == other._key


IDENTITY: Mapping[str, bool] = MappingProxyType({"is_identity": True})
"""marks fields that say who a pod is, not what it asks for"""
PREFERENCE: Mapping[str, bool] = MappingProxyType({"is_preference": True})
"""marks fields that choose among places that fit, and forbid none"""


@dataclass(frozen=True)
class PodRequest:
    """A pod as placement sees it. It has no slots, so that properties are computed once. A new field belongs to the
    shape, to the demand, to the journal and to texts by itself, unless it is marked."""

    uid: str = field(metadata=IDENTITY)
    namespace: str = field(metadata=IDENTITY)
    name: str = field(metadata=IDENTITY)
    containers: tuple[ContainerRequest, ...]
    """one entry for every container, init containers first: positions are the wire's positions. Then one for every
    request of the pod's claims that are not allocated yet"""
    constraints: tuple[tuple[str, Constraint], ...] = ()
    """by vendor key, sorted; vendors without constraints are left out"""
    numa_bind: bool = False
    node_policy: str = field(default="binpack", metadata=PREFERENCE)
    device_policy: str = field(default="spread", metadata=PREFERENCE)
    weights: Weights = field(default=Weights(), metadata=PREFERENCE)
    matches: tuple[AttributeMatch, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    """what annotations set for card rules (`CardRule.setting`), by their names, sorted"""
    host: HostRequest | None = field(default=None, metadata=PREFERENCE)
    """set only if the policy uses a forecast, since it makes more shapes"""
    forecast: DemandForecast | None = field(default=None, metadata=PREFERENCE)
    """set only if the policy uses a forecast"""
    preempts_below: int | None = field(default=None, compare=False, metadata=IDENTITY)
    """pods of lower priority than this may be evicted for it; None: none may"""
    priority: int = field(default=0, compare=False, metadata=IDENTITY)
    """of the pod, whether or not it may preempt"""
    group: str = field(default="", compare=False, metadata=IDENTITY)
    """its gang, with the namespace: no pod of it is evicted for it"""

    def called(
        self,
        *,
        uid: str,
        namespace: str,
        name: str,
        preempts_below: int | None = None,
        priority: int = 0,
        group: str = "",
    ) -> PodRequest:
        """The same request of another pod. What was computed from it is kept: nothing of it depends on the pod."""
        _ = self.asks_for_devices, self.vendors, self.requests, self.roles, self.shape
        other = object.__new__(PodRequest)
        other.__dict__.update(self.__dict__)
        other.__dict__.update(uid=uid, namespace=namespace, name=name, group=group)
        other.__dict__.update(preempts_below=preempts_below, priority=priority)
        return other

    @cached_property
    def asks_for_devices(self) -> bool:
        return any(container.requests for container in self.containers)

    @cached_property
    def vendors(self) -> tuple[str, ...]:
        return tuple(sorted({r.vendor for c in self.containers for r in c.requests}))

    @cached_property
    def requests(self) -> tuple[tuple[int, Request], ...]:
        """Of all containers and vendors, each with its container's position. Claims come first, because they are held
        when the first container starts."""
        ordered = sorted(enumerate(self.containers), key=lambda pair: pair[1].role is not Role.CLAIM)
        return tuple((place, asked) for place, container in ordered for asked in container.requests)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """By container."""
        return tuple(container.role for container in self.containers)

    def excess(self) -> str:
        """Why the pod is too large to be placed; empty if it is not. It bounds what one pod costs all others."""
        if len(self.requests) > MAX_REQUESTS:
            return f"{len(self.requests)} requests for devices in one pod; at most {MAX_REQUESTS}"
        for vendor, constraint in self.constraints:
            if constraint.words > MAX_WORDS:
                return f"annotations list {constraint.words} models and uuids of {vendor}; at most {MAX_WORDS}"
        return ""

    def constraint(self, vendor: str) -> Constraint:
        for key, constraint in self.constraints:
            if key == vendor:
                return constraint
        return UNCONSTRAINED

    def constraint_of(self, request: Request) -> Constraint:
        """Which cards one of its requests accepts."""
        if request.accepts is not None:
            return request.accepts
        return self.constraint(request.vendor) if self.constraints else UNCONSTRAINED

    def limit(self, setting: str) -> int | None:
        return next((value for name, value in self.limits if name == setting), None)

    @cached_property
    def shape(self) -> ShapeKey:
        """All fields that decide where the pod goes; the names of containers do not."""
        return ShapeKey((tuple((c.role, c.requests) for c in self.containers), _of_shape(self)))

    @property
    def demand(self) -> tuple[object, ...]:
        """All fields that decide where the pod may go."""
        values: tuple[object, ...] = _of_demand(self)
        return values


ASKED_FIELDS = tuple(one for one in fields(PodRequest) if "is_identity" not in one.metadata)
"""all that a pod asks for"""
_of_shape = attrgetter(*(one.name for one in ASKED_FIELDS if one.name != "containers"))
_of_demand = attrgetter(*(one.name for one in ASKED_FIELDS if "is_preference" not in one.metadata))
