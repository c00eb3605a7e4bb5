"""Cards, claims and settings for tests of the sharing modes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardFacts, MigInstance
from tessera.node.fleet import CardState, Fleet
from tessera.node.handover.assignments import Assignment, ObjectKey
from tessera.node.settings import AgentSettings, DeviceListStrategy, Paths
from tessera.wire.node_config import NodeSettings
from tessera.wire.pod_devices import DeviceEntry

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
C = "GPU-cccccccc-0000-0000-0000-000000000000"
MIG = "MIG-11111111-0000-0000-0000-000000000000"
OTHER_MIG = "MIG-22222222-0000-0000-0000-000000000000"
H200_MIB = 143_771


def card(uuid: str = A, index: int = 0, *, problem: str = "", **facts: Any) -> CardState:
    known = {"minor": index, "memory_bytes": H200_MIB * 1024 * 1024} | facts
    return CardState(CardFacts(uuid=uuid, index=index, name="NVIDIA H200", **known), problem)


def fleet(*uuids: str, **facts: Any) -> Fleet:
    """Healthy cards; their index is their position."""
    return Fleet(tuple(card(uuid, index, **facts) for index, uuid in enumerate(uuids or (A, B))))


def instance(uuid: str = A, *, mig_uuid: str | None = MIG, gpu: int = 1, compute: int | None = 0) -> MigInstance:
    return MigInstance(uuid, gpu, 19, MigPlacement(0, 1), compute, mig_uuid)


def slice_of(uuid: str = A, memory: int = 3000, cores: int = 30) -> DeviceEntry:
    return DeviceEntry(uuid, "NVIDIA", memory, cores)


def claim(*slices: DeviceEntry, uid: str = "uid-1", container: str = "main", **more: Any) -> Assignment:
    return Assignment(ObjectKey("team", f"pod-{uid}", uid), 0, container, slices or (slice_of(),), **more)


def paths_below(root: Path, **more: Any) -> Paths:
    """The paths of an agent below this folder."""
    own = {
        "hook": root / "hook",
        "lock": root / "shared" / "vgpulock",
        "state": root / "state",
        "cdi": root / "cdi",
        "driver_root_here": root / "driver",
        "caps": root / "mig-minors",
    }
    return Paths(**(own | more))


def settings(
    root: Path,
    *strategies: DeviceListStrategy,
    node: NodeSettings | None = None,
    paths: Paths | None = None,
    **more: Any,
) -> AgentSettings:
    return AgentSettings(
        node_name="node-a",
        node=node or NodeSettings(),
        strategies=frozenset(strategies or (DeviceListStrategy.ENVVAR,)),
        paths=paths or paths_below(root),
        **more,
    )


def put_files(root: Path, names: Collection[str]) -> None:
    """Empty files below a folder."""
    for name in names:
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
