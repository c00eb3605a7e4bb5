"""config.json of the node agent: settings of single nodes that override those for all nodes.

A key that is present overrides, even with zero, false or an empty text. Entries for the same node apply in order. Modes
and strategies are checked here, so the rest of the agent never sees an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from tessera.wire.config_file import ConfigFile

Mode = Literal["hami-core", "mig", "mps", "none"]
MigStrategy = Literal["none", "single", "mixed"]
Scaling = Annotated[float, msgspec.Meta(ge=0)]


class DeviceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Cards that the agent must leave alone."""

    uuid: tuple[str, ...] = ()
    index: tuple[int, ...] = ()


class CardModes(msgspec.Struct, frozen=True, kw_only=True):
    """Cards that are shared in a mode of their own."""

    mode: Mode = field(name="operatingmode")
    uuid: tuple[str, ...] = ()
    index: tuple[int, ...] = ()


class NodeOverride(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `nodeconfig`; missing keys are `UNSET`. Fields are called as in `NodeSettings`."""

    name: str
    mode: Literal["", "hami-core", "mig", "mps", "none"] | UnsetType = field(default=UNSET, name="operatingmode")
    card_modes: tuple[CardModes, ...] | UnsetType = field(default=UNSET, name="cardmodes")
    split_count: int | UnsetType = field(default=UNSET, name="devicesplitcount")
    memory_scaling: Scaling | UnsetType = field(default=UNSET, name="devicememoryscaling")
    core_scaling: Scaling | UnsetType = field(default=UNSET, name="devicecorescaling")
    preconfigured_memory: int | UnsetType = field(default=UNSET, name="preconfigureddevicememory")
    log_level: str | int | UnsetType = field(default=UNSET, name="libcudaloglevel")
    numa_topology: bool | UnsetType = field(default=UNSET, name="enablenumatopology")
    mig_strategy: Literal["", "none", "single", "mixed"] | UnsetType = field(default=UNSET, name="migstrategy")
    filtered: DeviceFilter | UnsetType = field(default=UNSET, name="filterdevices")
    preferred_allocation: bool | UnsetType = field(default=UNSET, name="enablegetpreferredallocation")


class _NodeConfig(msgspec.Struct, frozen=True):
    nodeconfig: list[NodeOverride] = []


_NO_FILTER = DeviceFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The effective settings of one node. The defaults are those of an installation without configuration."""

    split_count: int = 10
    """pods that may share a card"""
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    preconfigured_memory: int = 0
    """MiB, for cards that do not report theirs; 0 = none"""
    log_level: str = ""
    """of the enforcing library; empty = its own default"""
    numa_topology: bool = False
    mode: Mode = "hami-core"
    card_modes: tuple[CardModes, ...] = ()
    """of cards that are shared in another mode than the node's; the last entry that names a card counts"""
    mig_strategy: MigStrategy = "none"
    filtered: DeviceFilter = _NO_FILTER
    preferred_allocation: bool = True
    """HAMi ignores the key and always sets it; here an explicit false is respected"""

    @property
    def modes(self) -> frozenset[Mode]:
        """All modes that cards of the node may be shared in."""
        return frozenset({self.mode, *(each.mode for each in self.card_modes)})

    @property
    def serves_instances(self) -> bool:
        """Whether MIG instances that an administrator made are served. In mode `mig` all instances are the agent's."""
        return self.mig_strategy != "none" and "mig" not in self.modes

    def mode_of(self, uuid: str, index: int) -> Mode:
        """The mode of one card."""
        own = [each.mode for each in self.card_modes if uuid in each.uuid or index in each.index]
        return own[-1] if own else self.mode


def load_node_config(text: str, *, file: str) -> list[NodeOverride]:
    """The entries of the file in order."""
    read = ConfigFile(text, file=file, is_json=True)
    config = read.convert(_NodeConfig, read.value, any_case=True)
    read.check()
    entries: list[NodeOverride] = config.nodeconfig
    return entries


def override_for(overrides: Iterable[NodeOverride], node_name: str) -> NodeOverride:
    """All entries for one node merged into one."""
    merged = NodeOverride(name=node_name)
    for entry in overrides:
        if entry.name == node_name:
            merged = msgspec.structs.replace(merged, **_said(entry))
    return merged


def _said(entry: NodeOverride) -> dict[str, Any]:
    values = {name: getattr(entry, name) for name in entry.__struct_fields__}
    # An empty word cannot name a mode or strategy: only there does it mean "not set", as in HAMi.
    return {name: v for name, v in values.items() if v is not UNSET and (v != "" or name == "log_level")}


def effective(everywhere: Mapping[str, Any], override: NodeOverride) -> NodeSettings:
    """Merge the node's settings over those for all nodes (fields of `NodeSettings`; None = not set) over the
    defaults."""
    values = {name: value for name, value in everywhere.items() if value is not None} | _said(override)
    values.pop("name", None)
    return NodeSettings(**values | {"log_level": str(values.get("log_level", ""))})
