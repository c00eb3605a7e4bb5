"""Compares the ledger of a scheduler at rest with a replay of the API's objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from tessera.core.ledger.audit import BROKEN, audit
from tessera.core.ledger.ledger import Ledger, replay
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION
from tessera.scheduler.service import Service
from tessera.vendors.node_reader import node_facts, quota_facts
from tessera.vendors.pod_reader import PodReader
from tessera.wire.objects import Node, Pod, ResourceQuota, decode_object
from tessera.wire.pod_devices import DeviceEntry
from tessera_lab.sandbox.api.kinds import NODES, PODS, RESOURCE_QUOTAS
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.allocation import ALLOCATED, slices_of
from tessera_lab.sandbox.objects import containers_of, has_ended, key_of, node_of, uid_of


def in_visible_order(granted: Sequence[DeviceEntry], visible: str) -> tuple[DeviceEntry, ...]:
    """The granted slices in the order of NVIDIA_VISIBLE_DEVICES; unchanged if that names other cards."""
    seen = visible.split(",")
    if sorted(seen) != sorted(entry.uuid for entry in granted):
        return tuple(granted)
    return tuple(sorted(granted, key=lambda entry: seen.index(entry.uuid)))


_LIMIT = re.compile(r"CUDA_DEVICE_MEMORY_LIMIT_\d+")


def replayed(plane: ControlPlane, service: Service, *, without: frozenset[str] = frozenset()) -> Ledger:
    """The ledger that a scheduler would build from the current objects of the API server."""
    store, vendors, selector = plane.server.cluster.store, service.engine.vendors, service.settings.node_selector
    nodes = [decode_object(stored.whole, Node) for stored in store.list(NODES) if stored.name not in without]
    ours = [node for node in nodes if selector.items() <= (node.metadata.labels or {}).items()]
    facts = [node_facts(node, vendors) for node in ours]
    pods = [PodReader(vendors).facts(decode_object(stored.whole, Pod)) for stored in store.list(PODS)]
    quotas = [decode_object(stored.whole, ResourceQuota) for stored in store.list(RESOURCE_QUOTAS)]
    return replay(
        vendors,
        nodes=[node for node in facts if node.devices or node.problem],
        pods=[pod for pod in pods if pod is not None],
        quotas=[quota_facts(quota, vendors) for quota in quotas],
    )


def unrest(
    plane: ControlPlane, service: Service, *, without: frozenset[str] = frozenset(), overcommitted: bool = False
) -> str:
    """What is still under way, or wrong; empty = at rest. `overcommitted` is expected after a registration shrank."""
    under_way = {
        "binds": service.engine.cycles.checked_out,
        "reservations": service.engine.cycles.count(*HOLDS_RESERVATION),
        "bindings not shown yet": sum(1 for entry in service.ledger.pods() if not entry.observed),
        "turns": service.engine.queue.active,
        "waiting for a turn": service.engine.queue.waiting,
    }
    for what, count in under_way.items():
        if count:
            return f"{what}: {count}"
    findings = audit(service.ledger)
    broken = [finding for finding in findings if finding.kind == BROKEN]
    if broken or (findings and not overcommitted):
        return str((broken or findings)[0])
    if overcommitted and not findings:
        return "nothing is overcommitted"
    return _difference(service.ledger.state(), replayed(plane, service, without=without).state())


def _difference(known: object, shown: object, where: str = "ledger") -> str:
    if isinstance(known, Mapping) and isinstance(shown, Mapping):
        keys = sorted(map(str, {*known, *shown}))
        found = (_difference(known.get(key), shown.get(key), f"{where}.{key}") for key in keys)
        return next(filter(None, found), "") or ("" if known == shown else f"{where}: {known} is not {shown}")
    return "" if known == shown else f"{where}: {known} is not {shown}"


def wrong_slices(plane: ControlPlane) -> Iterator[str]:
    """Containers that would not see exactly what their pod was granted."""
    for pod in plane.pods():
        node = plane.nodes.get(node_of(pod))
        if node is None or has_ended(pod):
            continue
        granted = dict(slices_of(pod, ALLOCATED))
        for position, container in enumerate(containers_of(pod)):
            view = node.containers.get((uid_of(pod), container["name"]))
            if view is None:
                continue
            slice_ = in_visible_order(granted.get(position, ()), view.env.get("NVIDIA_VISIBLE_DEVICES", ""))
            seen = {key: value for key, value in view.env.items() if _LIMIT.fullmatch(key)}
            expected = {f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{entry.memory}m" for i, entry in enumerate(slice_)}
            devices = ",".join(entry.uuid for entry in slice_)
            cores = str(slice_[0].cores) if slice_ else ""
            found = (seen, view.env.get("NVIDIA_VISIBLE_DEVICES", ""), view.env.get("CUDA_DEVICE_SM_LIMIT", ""))
            if found != (expected, devices, cores):
                yield f"{key_of(pod)} {container['name']}: sees {found}, not {(expected, devices, cores)}"
