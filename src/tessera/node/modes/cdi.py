"""CDI documents: what a container runtime has to add to a container for each card, instance or feature.

Names of devices are uuids, as the answers of Allocate have them. A card or instance without device nodes is left out,
because a device that changes nothing would start a container without its card. Writing files is in `cdi_files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from tessera.node.fleet import Fleet
from tessera.node.inventory.cards import MigInstance
from tessera.node.modes.base import NO_DEVICES, DeviceNode, Mount
from tessera.node.modes.device_lists import CDI_ALL, CDI_GPU, CDI_VENDOR, VISIBLE_DEVICES
from tessera.node.modes.device_specs import DeviceSpecs
from tessera.node.modes.driver_files import DriverFiles

CDI_VERSION = "0.5.0"
"""the lowest that knows `hostPath` of device nodes; older runtimes refuse anything higher than they need"""
MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "bind")

FEATURE_NODES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gdrcopy": ("/dev/gdrdrv",),
        "gds": ("/dev/nvidia-fs*",),
        "mofed": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
    }
)
"""patterns of device nodes by class"""
FEATURE_MOUNTS: Mapping[str, tuple[str, ...]] = MappingProxyType({"gds": ("/run/udev", "/etc/cufile.json")})

Document = dict[str, Any]


def gpu_document(
    fleet: Fleet, instances: Iterable[MigInstance], *, specs: DeviceSpecs, driver: DriverFiles
) -> Document | None:
    """All cards and instances of a node; None where none has a device node."""
    nodes: dict[str, tuple[DeviceNode, ...]] = {card.facts.uuid: specs.of_card(card.facts) for card in fleet}
    for instance in instances:
        card = fleet.card(instance.uuid)
        if card is not None and instance.mig_uuid is not None:
            nodes[instance.mig_uuid] = specs.of_instance(instance, card.facts)
    nodes = {name: own for name, own in nodes.items() if own}
    if not nodes:
        return None
    everything = {node.container_path: node for own in nodes.values() for node in own}
    nodes[CDI_ALL] = tuple(everything.values())
    common: Document = {
        # NVIDIA's own runtime would otherwise add cards by the image's variable.
        "env": [f"{VISIBLE_DEVICES}={NO_DEVICES}"],
        **_edits(specs.control(), driver.mounts),
        **_hooks(driver),
    }
    return _document(CDI_GPU, nodes) | {"containerEdits": common}


def feature_document(feature: str, *, specs: DeviceSpecs) -> Document | None:
    """What a feature besides cards needs; None where the node does not have it."""
    nodes = tuple(node for pattern in FEATURE_NODES[feature] for node in specs.matching(pattern))
    if not nodes:
        return None
    mounts = tuple(Mount(path, path) for path in FEATURE_MOUNTS.get(feature, ()) if specs.is_here(path))
    document = _document(feature, {CDI_ALL: nodes})
    document["devices"][0]["containerEdits"].update(_edits((), mounts))
    return document


def device_names(document: Document) -> frozenset[str]:
    return frozenset(device["name"] for device in document["devices"])


def _document(device_class: str, nodes: Mapping[str, Sequence[DeviceNode]]) -> Document:
    return {
        "cdiVersion": CDI_VERSION,
        "kind": f"{CDI_VENDOR}/{device_class}",
        "devices": [{"name": name, "containerEdits": _edits(own, ())} for name, own in nodes.items()],
    }


def _edits(nodes: Sequence[DeviceNode], mounts: Sequence[Mount]) -> Document:
    edits: Document = {}
    if nodes:
        edits["deviceNodes"] = [
            {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions} for node in nodes
        ]
    if mounts:
        edits["mounts"] = [
            {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": list(MOUNT_OPTIONS)}
            for mount in mounts
        ]
    return edits


def _hooks(driver: DriverFiles) -> Document:
    if not driver.hook or not driver.library_folders:
        return {}
    program = PurePosixPath(driver.hook).name
    # The same hooks come as a program of their own and as a part of nvidia-ctk.
    called = [program, "hook"] if program == "nvidia-ctk" else [program]
    folders = [word for folder in driver.library_folders for word in ("--folder", folder)]
    return {
        "hooks": [
            {"hookName": "createContainer", "path": driver.hook, "args": [*called, "update-ldcache", *folders]},
        ]
    }
