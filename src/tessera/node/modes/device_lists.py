"""How a container is told which cards or MIG instances it gets: the part of an answer that all sharing modes have.

Each is named once, in the order in which CUDA and NVML enumerate them inside the container (index of the card, then
number of the instance), so that whoever numbers limits in that order is right. A list is never empty: to NVIDIA's
runtime an empty one would mean something else.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from tessera.node.fleet import Fleet
from tessera.node.inventory.cards import CardFacts, MigInstance
from tessera.node.modes.base import Answer, DeviceNode, Mount, Refused
from tessera.node.modes.device_specs import DeviceSpecs
from tessera.node.settings import AgentSettings, DeviceIdStrategy, DeviceListStrategy
from tessera.wire.quotes import quoted

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
CDI_VENDOR = "k8s.device-plugin.nvidia.com"
CDI_GPU = "gpu"
CDI_ALL = "all"
CDI_KEY = "nvidia-device-plugin_"
"""of the annotation; a suffix that no other answer has follows"""
LIST_FOLDER = "/var/run/nvidia-container-devices"
"""in containers: the names of the files in it are the list"""
LIST_SOURCE = "/dev/null"
REPLICA_MARK = "::"
"""what follows it numbers a replica and is no part of a name"""
MIG_PREFIX = "MIG-"

NO_INSTANCES: tuple[MigInstance, ...] = ()


class CdiOffers(Protocol):
    """Whoever wrote CDI specs knows what they offer."""

    @property
    def problem(self) -> str:
        """why the specs are not as they should be; empty = they are"""
        ...

    def offers(self, device_class: str, name: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One card or instance of a list."""

    uuid: str
    name: str
    """as the container is told"""
    card: CardFacts | None = None
    """None only for an instance that nobody listed"""
    instance: MigInstance | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        if self.card is None:
            return (1, 0, 0)
        return (0, self.card.index, -1 if self.instance is None else self.instance.gpu_instance)


class DeviceLists:
    """One agent's way to tell containers their cards."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        specs: DeviceSpecs | None = None,
        cdi: CdiOffers | None = None,
        instances: Callable[[], Sequence[MigInstance]] = lambda: NO_INSTANCES,
        new_suffix: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._settings = settings
        self._specs = specs or DeviceSpecs(settings.paths)
        self._cdi = cdi
        self._instances = instances
        """all that exist now, of all cards"""
        self._new_suffix = new_suffix

    def answer(self, ids: Sequence[str], fleet: Fleet) -> Answer:
        """For cards or instances by uuid. Raises Refused."""
        members = self._members(ids, fleet)
        answer = Answer()
        # In the order of the enum: where both are on, the folder of names wins over the variable.
        for strategy in DeviceListStrategy:
            if strategy in self._settings.strategies:
                answer = answer.with_more(_ANSWERS[strategy](self, members))
        if all(strategy.is_cdi for strategy in self._settings.strategies):
            return answer
        if self._settings.pass_device_specs:
            answer = answer.with_more(Answer(devices=self._nodes(members)))
        return answer.with_more(self.features())

    def features(self) -> Answer:
        """What NVIDIA's runtime adds to every container, whichever cards it has."""
        return Answer(env={f"NVIDIA_{each.upper()}": "enabled" for each in enabled_features(self._settings)})

    def _members(self, ids: Sequence[str], fleet: Fleet) -> list[Member]:
        if not ids:
            raise Refused("no card was asked for")
        instances = {each.mig_uuid: each for each in self._instances()}
        names = dict.fromkeys(each.split(REPLICA_MARK, 1)[0] for each in ids)
        members = [self._member(each, fleet, instances.get(each)) for each in names]
        return sorted(members, key=lambda member: member.order)

    def _member(self, uuid: str, fleet: Fleet, instance: MigInstance | None) -> Member:
        state = fleet.card(instance.uuid if instance else uuid)
        if state is None and not uuid.startswith(MIG_PREFIX):
            raise Refused(f"card {quoted(uuid)} is not among this node's cards")
        # An instance's index changes whenever one before it goes: only its uuid names it.
        by_index = self._settings.id_strategy is DeviceIdStrategy.INDEX and instance is None and state is not None
        name = str(state.facts.index) if by_index and state else uuid
        return Member(uuid, name, state.facts if state else None, instance)

    def _by_variable(self, members: Sequence[Member]) -> Answer:
        return Answer(env={VISIBLE_DEVICES: ",".join(member.name for member in members)})

    def _by_mounts(self, members: Sequence[Member]) -> Answer:
        return Answer(
            env={VISIBLE_DEVICES: LIST_FOLDER},
            mounts=tuple(Mount(f"{LIST_FOLDER}/{member.name}", LIST_SOURCE, read_only=False) for member in members),
        )

    def _by_annotation(self, members: Sequence[Member]) -> Answer:
        key = f"{self._settings.cdi_annotation_prefix}{CDI_KEY}{self._new_suffix()}"
        return Answer(annotations={key: ",".join(self._cdi_names(members))})

    def _by_cri(self, members: Sequence[Member]) -> Answer:
        return Answer(cdi_devices=self._cdi_names(members))

    def _cdi_names(self, members: Sequence[Member]) -> tuple[str, ...]:
        """By uuid whatever the id strategy: these names are between the agent and the spec that it writes."""
        for member in members:
            if self._cdi is not None and not self._cdi.offers(CDI_GPU, member.uuid):
                raise Refused(f"{member.uuid} is in no CDI spec: {self._cdi.problem or 'it has no device node'}")
        cards = (cdi_name(CDI_GPU, member.uuid) for member in members)
        features = (
            cdi_name(each, CDI_ALL)
            for each in enabled_features(self._settings)
            if self._cdi is not None and self._cdi.offers(each, CDI_ALL)
        )
        return (*cards, *features)

    def _nodes(self, members: Sequence[Member]) -> tuple[DeviceNode, ...]:
        nodes = [*self._specs.control()]
        for member in members:
            own: tuple[DeviceNode, ...] = ()
            if member.card is not None:
                own = (
                    self._specs.of_card(member.card)
                    if member.instance is None
                    else self._specs.of_instance(member.instance, member.card)
                )
            if not own:
                raise Refused(f"{member.uuid} has no device node that the driver tells of")
            nodes.extend(own)
        return tuple(nodes)


def cdi_name(device_class: str, name: str) -> str:
    """Qualified, as container runtimes look it up."""
    return f"{CDI_VENDOR}/{device_class}={name}"


def enabled_features(settings: AgentSettings) -> tuple[str, ...]:
    """What besides cards is configured, by the name of its CDI class."""
    every = {"gdrcopy": settings.gdrcopy, "gds": settings.gds, "mofed": settings.mofed}
    return tuple(name for name, enabled in every.items() if enabled)


_ANSWERS: Mapping[DeviceListStrategy, Callable[[DeviceLists, Sequence[Member]], Answer]] = MappingProxyType(
    {
        DeviceListStrategy.ENVVAR: DeviceLists._by_variable,
        DeviceListStrategy.VOLUME_MOUNTS: DeviceLists._by_mounts,
        DeviceListStrategy.CDI_ANNOTATIONS: DeviceLists._by_annotation,
        DeviceListStrategy.CDI_CRI: DeviceLists._by_cri,
    }
)
