"""config.json of the node agent: settings of single nodes that override those for all nodes.

A key that is present overrides, even with zero, false or an empty text. Entries for the same node apply in order. Modes
and strategies are checked here, so the rest of the agent never sees an unknown one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tessera.wire.documents import Report
from tessera.wire.json_source import read_json
from tessera.wire.strict import decode

Mode = Literal["hami-core", "mig", "mps", "none"]
MigStrategy = Literal["none", "single", "mixed"]
Scaling = Annotated[float, msgspec.Meta(ge=0)]


class DeviceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Cards that the agent must leave alone."""

    uuid: tuple[str, ...] = ()
    index: tuple[int, ...] = ()


class NodeOverride(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `nodeconfig`; missing keys are `UNSET`."""

    name: str
    operatingmode: Literal["", "hami-core", "mig", "mps", "none"] | UnsetType = UNSET
    devicememoryscaling: Scaling | UnsetType = UNSET
    devicecorescaling: Scaling | UnsetType = UNSET
    devicesplitcount: int | UnsetType = UNSET
    preconfigureddevicememory: int | UnsetType = UNSET
    """MiB"""
    libcudaloglevel: str | int | UnsetType = UNSET
    enablenumatopology: bool | UnsetType = UNSET
    migstrategy: Literal["", "none", "single", "mixed"] | UnsetType = UNSET
    filterdevices: DeviceFilter | UnsetType = UNSET
    enablegetpreferredallocation: bool | UnsetType = UNSET


class _NodeConfig(msgspec.Struct, frozen=True):
    nodeconfig: list[NodeOverride] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalNodeSettings:
    """Settings for all nodes: the nvidia section of device-config.yaml and the agent's flags. None = not set."""

    split_count: int | None = None
    memory_scaling: float | None = None
    core_scaling: float | None = None
    preconfigured_memory: int | None = None
    """MiB"""
    log_level: str | int | None = None
    numa_topology: bool | None = None
    mig_strategy: MigStrategy | None = None


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
    mig_strategy: MigStrategy = "none"
    filtered: DeviceFilter = _NO_FILTER
    preferred_allocation: bool = True
    """HAMi ignores the key and always sets it; here an explicit false is respected"""


def load_node_config(text: str, *, file: str) -> list[NodeOverride]:
    """The entries of the file in order."""
    report = Report(file)
    config = decode(read_json(text, report), _NodeConfig, report=report, any_case=True)
    report.check()
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
    return {name: v for name, v in values.items() if v is not UNSET and (v != "" or name == "libcudaloglevel")}


def effective(settings: GlobalNodeSettings, override: NodeOverride) -> NodeSettings:
    """Merge the node's settings over those for all nodes over the defaults."""
    base = NodeSettings()
    return NodeSettings(
        split_count=_first(override.devicesplitcount, settings.split_count, base.split_count),
        memory_scaling=_first(override.devicememoryscaling, settings.memory_scaling, base.memory_scaling),
        core_scaling=_first(override.devicecorescaling, settings.core_scaling, base.core_scaling),
        preconfigured_memory=_first(
            override.preconfigureddevicememory, settings.preconfigured_memory, base.preconfigured_memory
        ),
        log_level=str(_first(override.libcudaloglevel, settings.log_level, base.log_level)),
        numa_topology=_first(override.enablenumatopology, settings.numa_topology, base.numa_topology),
        mode=_first(override.operatingmode or UNSET, None, base.mode),
        mig_strategy=_first(override.migstrategy or UNSET, settings.mig_strategy, base.mig_strategy),
        filtered=_first(override.filterdevices, None, base.filtered),
        preferred_allocation=_first(override.enablegetpreferredallocation, None, base.preferred_allocation),
    )


T = TypeVar("T")


def _first(own: T | UnsetType, everywhere: T | None, default: T) -> T:
    if own is not UNSET:
        return own
    return default if everywhere is None else everywhere
