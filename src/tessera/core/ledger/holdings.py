"""What one pod holds of the cards of one node, computed from its grants.

Everything here follows from API objects alone (the pod's annotations and the node's registration), so that a replay
gives exactly what the ledger has. What cannot be attributed exactly holds the card instead of freeing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tessera.core.fit.device_rules import Rules
from tessera.core.model.devices import MIG, NOTHING, Device, MigSlot
from tessera.core.model.grants import NO_USE, Grant, Grants, Span, Use, effective_use
from tessera.core.model.node_info import Tenant


class PodFacts(NamedTuple):
    """A pod that holds grants on a node, reduced to what accounting needs."""

    uid: str
    namespace: str
    name: str
    node: str
    spans: tuple[Span, ...] = ()
    grants: Mapping[str, tuple[Grants, ...]] = NOTHING
    """by vendor, one entry per container"""
    stray_mig: tuple[tuple[str, MigSlot], ...] = ()
    """MIG reservations (uuid, slot) that no grant claims"""
    settings: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    """vendor settings of the pod, by vendor"""
    problem: str = ""
    """why the allocation cannot be read completely; such a pod holds its whole node"""

    def tenant(self, vendor: str) -> Tenant:
        for key, settings in self.settings:
            if key == vendor:
                return Tenant(self.uid, settings)
        return Tenant(self.uid)


class Holding(NamedTuple):
    """One pod's part of one card."""

    use: Use = NO_USE
    mig: tuple[MigSlot, ...] = ()
    vendor: str = ""
    held: str = ""
    """why the card must not take anything new while this pod is there"""


def holdings(pod: PodFacts, devices: Mapping[str, Device], rules: Mapping[str, Rules]) -> dict[str, Holding]:
    """By uuid. Cards that the node does not have (any more) are left out: there is nothing to protect."""
    found: dict[str, list[tuple[int, Grant]]] = {}
    for containers in pod.grants.values():
        for position, grants in enumerate(containers):
            for grant in grants:
                if grant.uuid in devices:
                    found.setdefault(grant.uuid, []).append((position, grant))
    result: dict[str, Holding] = {}
    for uuid, entries in found.items():
        result[uuid] = _of_card(pod, devices[uuid], entries, rules)
    for uuid, slot in pod.stray_mig:
        _add_stray(result, devices, uuid, slot)
    return result


def _of_card(pod: PodFacts, device: Device, entries: list[tuple[int, Grant]], rules: Mapping[str, Rules]) -> Holding:
    vendor = rules.get(device.vendor)
    uses = []
    instances = []
    held = ""
    for position, grant in entries:
        use = vendor.charge(device, grant) if vendor else Use(grant.slots, grant.memory, grant.cores)
        uses.append((position, use, grant.mig is not None))
        if grant.mig is not None:
            instances.append(grant.mig)
        if (device.mode == MIG) != (grant.mig is not None):
            what = "no MIG reservation" if grant.mig is None else "a MIG reservation"
            held = f"pod {pod.namespace}/{pod.name} has {what} on a card in mode {device.mode or 'unknown'}"
    return Holding(
        use=effective_use(pod.spans, uses, core_masks=bool(vendor and vendor.core_masks)),
        mig=tuple(instances),
        vendor=device.vendor,
        held=held,
    )


def _add_stray(result: dict[str, Holding], devices: Mapping[str, Device], uuid: str, slot: MigSlot) -> None:
    """A reservation without a grant still occupies its place; if that place is unknown, every MIG card is held."""
    device = devices.get(uuid)
    if device is None:
        for other in devices.values():
            if other.mode == MIG:
                old = result.get(other.uuid, Holding(vendor=other.vendor))
                held = f"a MIG reservation names the unknown card {uuid}"
                result[other.uuid] = Holding(old.use, old.mig, old.vendor, old.held or held)
        return
    old = result.get(uuid, Holding(vendor=device.vendor))
    if device.mode == MIG:
        result[uuid] = Holding(old.use, (*old.mig, slot), old.vendor, old.held)
    else:
        held = f"a MIG reservation on a card in mode {device.mode or 'unknown'}"
        result[uuid] = Holding(old.use, old.mig, old.vendor, old.held or held)
