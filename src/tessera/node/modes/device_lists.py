"""How a container is told which cards or MIG instances it gets: the part of the response that all modes share.

Each device is named once, in the order in which CUDA and NVML enumerate devices inside the container (card index, then
GPU instance), so limits numbered in that order are right. A list is never empty: NVIDIA's runtime would give an empty
list another meaning.

A card's device node is named after its minor number. A MIG instance has its card's node and the nodes of two
capabilities, whose numbers the driver lists. Nodes that the driver does not report are never invented. Only the
driver's control nodes are checked for existence, because the agent may not see nodes created after it started.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tessera.host.cards import CardFacts, MigInstance
from tessera.node.fleet import Fleet
from tessera.node.modes.base import AllocationRefused, ContainerResponse, DeviceNode, HostMount
from tessera.node.settings import AgentSettings, DeviceIdStrategy, DeviceListStrategy, Paths
from tessera.vendors.nvidia.downward_api import VISIBLE
from tessera.wire.errors import quoted

if TYPE_CHECKING:
    from tessera.node.modes.cdi import CdiFiles

CDI_VENDOR = "k8s.device-plugin.nvidia.com"
CDI_GPU = "gpu"
CDI_ALL = "all"
CDI_KEY = "nvidia-device-plugin_"
"""of the annotation; a unique suffix follows"""
LIST_FOLDER = "/var/run/nvidia-container-devices"
"""in containers; its file names are the list"""
LIST_SOURCE = "/dev/null"
REPLICA_MARK = "::"
"""the number of a replica follows; it is not part of the name"""
MIG_PREFIX = "MIG-"

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
WSL_NODE = "/dev/dxg"
"""for all cards of a Windows host, which has no nodes for single cards"""

_CAPABILITY = re.compile(r"gpu([0-9]{1,4})/gi([0-9]{1,4})(?:/ci([0-9]{1,4}))?/access ([0-9]{1,7})", re.ASCII)


class Capability(NamedTuple):
    """The right to use a GPU instance, or one of its compute instances."""

    card: int
    """minor number"""
    gpu_instance: int
    compute_instance: int | None = None


def parse_mig_minors(text: str) -> dict[Capability, int]:
    """Parses the driver's list of capabilities. Other lines are skipped; the first of equal entries counts."""
    minors: dict[Capability, int] = {}
    for line in text.splitlines():
        found = _CAPABILITY.fullmatch(line.strip())
        if found is not None:
            card, gpu_instance, compute_instance, minor = found.groups()
            inner = None if compute_instance is None else int(compute_instance)
            minors.setdefault(Capability(int(card), int(gpu_instance), inner), int(minor))
    return minors


class DeviceSpecs:
    """Looks nodes up. /dev and /proc are in memory, so this does not block."""

    def __init__(self, paths: Paths, *, here: Path = Path("/")) -> None:
        self._paths = paths
        self._here = here
        """the root below which the agent sees /dev"""
        # As strings, because every response needs them.
        self._root, self._root_here = (f"{each}".rstrip("/") for each in (paths.dev_root, here))

    def control(self) -> tuple[DeviceNode, ...]:
        """Returns the nodes that every container with a card needs besides it."""
        return tuple(self.node(path) for path in CONTROL_NODES if self.is_here(path))

    def of_card(self, card: CardFacts) -> tuple[DeviceNode, ...]:
        """Returns nothing if the card has no node."""
        if card.minor is not None:
            return (self.node(f"/dev/nvidia{card.minor}"),)
        return (self.node(WSL_NODE),) if self.is_here(WSL_NODE) else ()

    def of_instance(self, instance: MigInstance, card: CardFacts) -> tuple[DeviceNode, ...]:
        """Returns nothing if the driver does not list the instance's capabilities."""
        if card.minor is None or instance.compute_instance is None:
            return ()
        minors = self._capabilities()
        outer = minors.get(Capability(card.minor, instance.gpu_instance))
        inner = minors.get(Capability(card.minor, instance.gpu_instance, instance.compute_instance))
        if outer is None or inner is None:
            return ()
        capabilities = (self.node(f"/dev/nvidia-caps/nvidia-cap{minor}") for minor in (outer, inner))
        return (*self.of_card(card), *capabilities)

    def matching(self, pattern: str) -> tuple[DeviceNode, ...]:
        """Returns existing nodes that match a pattern such as `/dev/nvidia-fs*`."""
        found = sorted(self._here.glob(pattern.lstrip("/")))
        return tuple(self.node("/" + str(each.relative_to(self._here))) for each in found)

    def is_here(self, path: str) -> bool:
        return os.path.exists(f"{self._root_here}{path}")

    def node(self, path: str) -> DeviceNode:
        return DeviceNode(container_path=path, host_path=f"{self._root}{path}")

    def _capabilities(self) -> Mapping[Capability, int]:
        try:
            return parse_mig_minors(self._paths.caps.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            # The driver does not support MIG.
            return {}


@dataclass(frozen=True, slots=True)
class Member:
    """One card or instance of a list."""

    uuid: str
    name: str
    """as the container sees it"""
    card: CardFacts | None = None
    """None only for an unknown MIG instance"""
    instance: MigInstance | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        if self.card is None:
            return (1, 0, 0)
        return (0, self.card.index, -1 if self.instance is None else self.instance.gpu_instance)


class DeviceLists:
    """Names devices by the configured strategies."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        specs: DeviceSpecs | None = None,
        cdi: CdiFiles | None = None,
        new_suffix: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._settings = settings
        self._specs = specs or DeviceSpecs(settings.paths)
        self._cdi = cdi
        self._new_suffix = new_suffix

    def response(self, ids: Sequence[str], fleet: Fleet, instances: Sequence[MigInstance] = ()) -> ContainerResponse:
        """`ids` are uuids of cards or of MIG `instances`. Raises AllocationRefused."""
        members = self._members(ids, fleet, instances)
        response = ContainerResponse()
        # In the order of the enum: volume mounts override the variable.
        for strategy in DeviceListStrategy:
            if strategy in self._settings.strategies:
                response = response.with_more(self._named(members, strategy))
        if all(strategy.is_cdi for strategy in self._settings.strategies):
            return response
        if self._settings.pass_device_specs:
            response = response.with_more(ContainerResponse(devices=self._nodes(members)))
        return response.with_more(self.features())

    def features(self) -> ContainerResponse:
        """What NVIDIA's runtime adds to every container."""
        return ContainerResponse(env={f"NVIDIA_{each.upper()}": "enabled" for each in enabled_features(self._settings)})

    def _members(self, ids: Sequence[str], fleet: Fleet, instances: Sequence[MigInstance]) -> list[Member]:
        if not ids:
            raise AllocationRefused("no card was requested")
        by_uuid = {each.mig_uuid: each for each in instances}
        names = dict.fromkeys(each.split(REPLICA_MARK, 1)[0] for each in ids)
        members = [self._member(each, fleet, by_uuid.get(each)) for each in names]
        return sorted(members, key=lambda member: member.order)

    def _member(self, uuid: str, fleet: Fleet, instance: MigInstance | None) -> Member:
        state = fleet.card(instance.uuid if instance else uuid)
        if state is None and not uuid.startswith(MIG_PREFIX):
            raise AllocationRefused(f"card {quoted(uuid)} is not among this node's cards")
        # The index of an instance changes when an earlier one goes: only its uuid is stable.
        by_index = self._settings.id_strategy is DeviceIdStrategy.INDEX and instance is None and state is not None
        name = str(state.facts.index) if by_index and state else uuid
        return Member(uuid, name, state.facts if state else None, instance)

    def _named(self, members: Sequence[Member], strategy: DeviceListStrategy) -> ContainerResponse:
        match strategy:
            case DeviceListStrategy.ENVVAR:
                return ContainerResponse(env={VISIBLE: ",".join(member.name for member in members)})
            case DeviceListStrategy.VOLUME_MOUNTS:
                names = (f"{LIST_FOLDER}/{member.name}" for member in members)
                mounts = tuple(HostMount(name, LIST_SOURCE, read_only=False) for name in names)
                return ContainerResponse(env={VISIBLE: LIST_FOLDER}, mounts=mounts)
            case DeviceListStrategy.CDI_ANNOTATIONS:
                key = f"{self._settings.cdi_annotation_prefix}{CDI_KEY}{self._new_suffix()}"
                return ContainerResponse(annotations={key: ",".join(self._cdi_names(members))})
            case DeviceListStrategy.CDI_CRI:
                return ContainerResponse(cdi_devices=self._cdi_names(members))

    def _cdi_names(self, members: Sequence[Member]) -> tuple[str, ...]:
        """By uuid, whatever the id strategy: these are the names in the agent's own specs."""
        for member in members:
            if self._cdi is not None and not self._cdi.offers(CDI_GPU, member.uuid):
                raise AllocationRefused(
                    f"{member.uuid} is in no CDI spec: {self._cdi.problem or 'it has no device node'}"
                )
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
                raise AllocationRefused(f"{member.uuid} has no device node that the driver reports")
            nodes.extend(own)
        return tuple(nodes)


def cdi_name(device_class: str, name: str) -> str:
    """Returns the qualified name that container runtimes look up."""
    return f"{CDI_VENDOR}/{device_class}={name}"


def enabled_features(settings: AgentSettings) -> tuple[str, ...]:
    """Returns the enabled features besides cards, by the name of their CDI class."""
    every = {"gdrcopy": settings.gdrcopy, "gds": settings.gds, "mofed": settings.mofed}
    return tuple(name for name, enabled in every.items() if enabled)
