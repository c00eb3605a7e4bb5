"""The interface of a vendor: everything that Tessera knows about one kind of card, in one object.

`Vendor` adds resource names, admission, requests, registration and annotations to the decision rules in
`core.device_rules.Rules`. A vendor module ends with a `FAMILY`: its section of device-config.yaml and how to build
vendors from it. The registry finds it there, so adding a vendor touches no other module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import msgspec

from tessera.core.fit.device_rules import Rules
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.requests import UNCONSTRAINED, WHOLE_CARD_CORES, Constraint, PodRequest, Request
from tessera.vendors.annotation_values import Choice
from tessera.vendors.downward_api import DownwardApi, ProtectedVariables
from tessera.vendors.drafts import BadPod, BadRequest, ContainerDraft, Denied, PodDraft, Resources, words
from tessera.vendors.parts.card_shares import LEAST_ASK, LEAST_MIB_OF_A_CARD, WHOLE_MEMORY, cards_asked, memory_of
from tessera.wire.errors import WireError
from tessera.wire.golang import INT32_MAX
from tessera.wire.objects import Node
from tessera.wire.pod_devices import DeviceEntry, encode_pod_devices
from tessera.wire.registration import decode_registration

NANOSECONDS = 1_000_000_000
"""in a second"""


EMPTY_REGISTRATIONS = ("", "null")
"""what agents write for no cards besides `[]`: nothing in the text form, Go's nil slice in the JSON form"""


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """What pods write under `resources`; an empty name is never matched."""

    count: str = ""
    memory: str = ""
    cores: str = ""
    others: tuple[str, ...] = ()
    """further names that the extender manages"""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(name for name in (self.count, self.memory, self.cores, *self.others) if name)


Amount = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
"""a counter of a section or a registration; signed 32-bit on the wire"""


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the configuration sections: camelCase on the wire, a missing key has the field's default."""

    @property
    def names(self) -> ResourceNames:
        """From the three usual keys, as far as the section has them."""
        count, memory, cores = (getattr(self, f"resource_{what}_name", "") for what in ("count", "memory", "core"))
        return ResourceNames(count, memory, cores)


class SharedSection(Section, frozen=True, kw_only=True):
    """The section of a vendor that shares cards by memory and cores: the three resource names."""

    resource_count_name: str = ""
    resource_memory_name: str = ""
    resource_core_name: str = ""


@dataclass(frozen=True)
class AnnotationKeys:
    """Annotations that a vendor reads or writes; empty = it has none of that kind."""

    register: str = ""
    """node annotation in which the node agent registers its cards"""
    handshake: str = ""
    to_allocate: str = ""
    allocated: str = ""
    use_models: str = ""
    avoid_models: str = ""
    use_uuids: tuple[str, ...] = ()
    avoid_uuids: tuple[str, ...] = ()
    mode: str = ""
    settings: tuple[str, ...] = ()
    """pod annotations that end up in `Constraint.extra`"""
    traits: tuple[str, ...] = ()
    """node annotations that `node_score` or `fit` read (`NodeFacts.traits`)"""
    lock: str = ""
    """node annotation that serialises handover where this vendor's plugin needs it"""
    lock_s: float | None = None
    """age at which that lock has expired; None = the scheduler's --node-lock-timeout"""

    @cached_property
    def constraining(self) -> tuple[str, ...]:
        """Pod annotations that say which cards it accepts."""
        return (
            self.use_models, self.avoid_models, *self.use_uuids, *self.avoid_uuids, self.mode, *self.settings
        )  # fmt: skip

    @property
    def written(self) -> tuple[str, ...]:
        """Annotations that only agents, administrators and the scheduler write."""
        return (self.register, self.handshake, self.to_allocate, self.allocated, *self.traits, self.lock)


@dataclass(frozen=True, slots=True)
class NodeProblem:
    """A registration that cannot be read. The node takes no pods until it can: unknown is never free."""

    text: str


class Bound(NamedTuple):
    """A placement that is about to be written."""

    pod: PodRequest
    node: str
    grants: tuple[Grants, ...]
    """this vendor's, one entry per container"""
    now: float
    """unix time in seconds"""

    @property
    def nanoseconds(self) -> str:
        """`now` in the form that several plugins read: unix time in nanoseconds, decimal"""
        return str(round(self.now * NANOSECONDS))


class Vendor(Rules):
    """One vendor. Subclasses fill in names and keys and override what differs."""

    names: ResourceNames
    keys: AnnotationKeys = AnnotationKeys()
    downward_api: DownwardApi | None = None
    """how slices reach a container from its own pod; None = through Allocate alone"""
    protected: ProtectedVariables | None = None
    """variables that a tenant must not set; None = no variable gives this maker's cards to a container"""
    hides_devices: bool = False
    """hide all cards from containers that ask for none"""
    default_cores: int = 0
    """cores of each card for a container that names none"""
    closed: tuple[Choice, ...] = ()
    """annotations whose values are a closed set of words"""
    limits_only: bool = False
    """whether `request` ignores what only a container's requests name"""

    def __init__(self, names: ResourceNames) -> None:
        """Quotas limit memory and cores under the names by which pods ask for them."""
        self.names = names
        self.quota_memory = names.memory
        self.quota_cores = names.cores

    # -- admission

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        """Complete one container's request. True where the container asks for this vendor."""
        return container.text(self.names.count, limits_only=True) is not None

    # -- mistakes

    def choices(self, annotations: Mapping[str, str]) -> tuple[Choice, ...]:
        """The annotations of a pod whose values can be wrong."""
        return self.closed

    def find_unmeant(self, resources: Resources, annotations: Mapping[str, str]) -> BadRequest | None:
        """An amount that can be read, but not meant. The webhook refuses it; filter reads it as HAMi does, for pods
        that did not pass the webhook."""
        names, count = self.names, resources.amount(self.names.count)
        if count == 0:
            part = next((name for name in self.parts if resources.amount(name) not in (None, 0)), None)
            advice = f"{part} of no card is nothing: write 1 or more, or remove {part}"
            return BadRequest(names.count, "0", advice) if part is not None else None
        cores, memory = resources.amount(names.cores), self.memory_asked(resources)
        most = self.max_cores(count if isinstance(count, int) else 1)
        if isinstance(cores, int) and cores > most:
            return BadRequest(names.cores, str(cores), f"a whole card is {most}: write a number from 1 to {most}")
        if isinstance(memory, int) and LEAST_ASK < memory < self.least_memory(annotations):
            text, example = str(resources.text(names.memory)), f"{memory * 1024 // self.quota_factor} for {memory} GiB"
            return BadRequest(names.memory, text, f"no process starts in {memory} MiB of a card: write {example}")
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """Resources that say how much of each card a container wants."""
        return self.names.memory, self.names.cores

    def max_cores(self, cards: int) -> int:
        """What a container may write for the cores of so many cards."""
        return WHOLE_CARD_CORES

    def least_memory(self, annotations: Mapping[str, str]) -> int:
        """MiB of a card below which a request cannot be meant; 0 where small requests are rounded up."""
        return LEAST_MIB_OF_A_CARD

    # -- requests

    def request(self, resources: Resources) -> Request | BadRequest | None:
        """What a container asks; None = nothing of this vendor. The default: cards, with memory and cores of each."""
        if self.limits_only:
            resources = Resources(limits=resources.limits)
        count = cards_asked(resources, self.names.count)
        if count is None or isinstance(count, BadRequest):
            return count
        memory = self.memory_asked(resources)
        if isinstance(memory, BadRequest):
            return memory
        cores = resources.amount(self.names.cores)
        if isinstance(cores, BadRequest):
            return cores
        return Request(
            vendor=self.key,
            count=count,
            memory=memory,
            percent=0 if memory else WHOLE_MEMORY,
            cores=self.default_cores if cores is None else cores,
        )

    def memory_asked(self, resources: Resources) -> int | BadRequest:
        """MiB of each card; 0 if the container names none."""
        return memory_of(resources, self.names.memory, mib_per_unit=self.quota_factor)

    def constraint(self, annotations: Mapping[str, str]) -> Constraint:
        """Which cards the pod accepts, from its annotations."""
        keys = self.keys
        if annotations.keys().isdisjoint(keys.constraining):
            return UNCONSTRAINED
        return Constraint(
            use_models=words(annotations, keys.use_models, lower=True),
            avoid_models=words(annotations, keys.avoid_models, lower=True),
            use_uuids=_joined(annotations, keys.use_uuids),
            avoid_uuids=_joined(annotations, keys.avoid_uuids),
            mode=annotations.get(keys.mode) if keys.mode else None,
            extra=self.settings(annotations),
        )

    def settings(self, annotations: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """The annotations that only this vendor's rules read, sorted. Rules see them for the pods that share a card."""
        wanted = self.keys.settings
        return tuple(sorted((key, annotations[key]) for key in wanted if key in annotations)) if wanted else ()

    def narrow(self, pod: PodRequest) -> Constraint | BadPod:
        """The pod's constraint without cards that its containers cannot use."""
        return pod.constraint(self.key)

    # -- nodes

    def devices(self, node: Node) -> tuple[Device, ...] | NodeProblem:
        """The cards that a node has; empty = none of this vendor. The default: those that its node agent registers."""
        text = node.annotations.get(self.keys.register, "")
        if text.strip() in EMPTY_REGISTRATIONS:
            return ()
        try:
            return self.decode_cards(text, node)
        except WireError as error:
            return NodeProblem(f"{self.keys.register}: {error}")

    def decode_cards(self, text: str, node: Node) -> tuple[Device, ...]:
        """The cards in a registration; the default reads what HAMi's plugins write. Raises WireError, never guesses."""
        return decode_registration(text, vendor=self.key)

    # -- binding

    def annotations(self, bound: Bound) -> dict[str, str]:
        """What the binding writes for this vendor. The default: both device annotations."""
        text = self.encode(bound.grants)
        keys = self.keys
        written = {keys.to_allocate: text, keys.allocated: text}
        written.pop("", None)
        return written

    def encode(self, grants: Iterable[Grants]) -> str:
        return encode_pod_devices(
            [[DeviceEntry(g.uuid, g.word or self.key, g.memory, g.cores) for g in container] for container in grants]
        )

    def decode(self, entry: DeviceEntry) -> Grant:
        """A grant from an entry of the allocated annotation."""
        word = entry.word if entry.word != self.key else ""
        return Grant(uuid=entry.uuid, vendor=self.key, memory=entry.memory, cores=entry.cores, word=word)


def _joined(annotations: Mapping[str, str], keys: Iterable[str]) -> tuple[str, ...]:
    """The union of several comma lists."""
    return tuple(sorted({word for key in keys for word in words(annotations, key)}))


@dataclass(frozen=True, slots=True)
class Switches:
    """Command-line switches that decide which vendors exist."""

    ascend: bool = False
    iluvatar: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """A section of device-config.yaml and the vendors that it configures."""

    title: str
    """the maker's name, for people to read"""
    section: str
    chart: Any
    """the section as the chart ships it: a `Section`, or a tuple of them"""
    build: Callable[[Any, Switches], list[Vendor]]
    """builds vendors from a decoded section; gets the schema's empty value if the file lacks the section"""
    list_key: str = ""
    """key of the list that was the whole section in older versions of HAMi"""

    @property
    def schema(self) -> Any:
        """The type of the section."""
        return tuple[type(self.chart[0]), ...] if isinstance(self.chart, tuple) else type(self.chart)  # type: ignore[misc]
