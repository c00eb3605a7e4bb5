"""Pools and claims for tests: slices as an agent publishes them, claims as users write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.core.devices import NodeFacts
from tessera.core.grants import Grants
from tessera.node.dra.offers import Surrounding, offers, slice_contents
from tessera.node.fleet import Fleet
from tessera.node.registration.devices import registrable
from tessera.node.settings import AgentSettings
from tessera.vendors.claims import ClaimAsk, PoolDevices, pool_devices, read_claim, with_published
from tessera.wire.claim_spec import DeviceClass
from tessera.wire.node_config import Mode, NodeSettings
from tessera.wire.resource_api import (
    DRIVER,
    MANAGED,
    MANAGED_BY_TESSERA,
    NO_SCHEDULE,
    Allocation,
    ClaimStatus,
    Pool,
    ResourceClaim,
    ResourceSlice,
    SliceDevice,
    SliceSpec,
    Taint,
)

OURS = f"device.driver == '{DRIVER}'"


def attribute(name: str) -> str:
    """How a selector names one of our attributes."""
    return f"device.attributes['{DRIVER}'].{name}"


def device_class(*expressions: str, name: str = DRIVER, **spec: Any) -> DeviceClass:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}, DeviceClass)


CLASSES: Mapping[str, DeviceClass] = {DRIVER: device_class(OURS)}


def exactly(*selectors: str, count: int | None = None, **more: Any) -> dict[str, Any]:
    """A request for devices of our class; `memory` and `cores` are capacities."""
    capacity = {name: more.pop(name) for name in ("memory", "cores", "shares") if name in more}
    asked = {"deviceClassName": DRIVER, **more}
    if selectors:
        asked["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    if count is not None:
        asked["count"] = count
    if capacity:
        asked["capacity"] = {"requests": capacity}
    return asked


def claim(
    name: str = "claim",
    *requests: Mapping[str, Any],
    namespace: str = "default",
    constraints: Sequence[Mapping[str, Any]] = (),
    **named: Mapping[str, Any],
) -> ResourceClaim:
    """A claim; requests by name are exact ones."""
    every = [*requests, *({"name": key, "exactly": value} for key, value in named.items())]
    spec = {"devices": {"requests": every, "constraints": list(constraints)}}
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)


def ask(of: ResourceClaim) -> ClaimAsk:
    """What a claim that can be served asks for."""
    found = read_claim(of, CLASSES)
    assert isinstance(found, ClaimAsk), found
    return found


def allocated(of: ResourceClaim, given: Allocation) -> ResourceClaim:
    """The claim as the API shows it once this was written."""
    status = msgspec.json.decode(msgspec.json.encode({"allocation": given}), type=ClaimStatus)
    return msgspec.structs.replace(of, status=status)


def agent(mode: Mode = "hami-core", *, node: str = "n", **settings: Any) -> AgentSettings:
    return AgentSettings(node_name=node, node=NodeSettings(mode=mode, **settings))


def slices(fleet: Fleet, settings: AgentSettings, *, managed: bool = True, generation: int = 1) -> list[ResourceSlice]:
    """The ResourceSlices of a node, with the taint of devices that Tessera allocates."""
    contents = slice_contents(offers(fleet, settings), Surrounding())
    pool = Pool(name=settings.node_name, generation=generation, resource_slice_count=len(contents))
    return [
        ResourceSlice(
            SliceSpec(
                driver=DRIVER,
                pool=pool,
                node_name=settings.node_name,
                devices=tuple(_tainted(content.devices, managed=managed)) or None,
                shared_counters=content.counters,
            )
        )
        for content in contents
    ]


def _tainted(devices: Iterable[SliceDevice] | None, *, managed: bool) -> Iterable[SliceDevice]:
    taint = Taint(key=MANAGED, value=MANAGED_BY_TESSERA, effect=NO_SCHEDULE)
    for device in devices or ():
        yield msgspec.structs.replace(device, taints=(taint,)) if managed else device


def pool(fleet: Fleet, settings: AgentSettings, *, managed: bool = True) -> PoolDevices:
    return pool_devices(slices(fleet, settings, managed=managed))


def node(fleet: Fleet, settings: AgentSettings, *, managed: bool = True) -> NodeFacts:
    """A node that registers its cards and publishes them."""
    cards = registrable(fleet, settings).devices
    return NodeFacts(settings.node_name, with_published(cards, pool(fleet, settings, managed=managed)))


def cards(grants: Mapping[str, Grants]) -> dict[str, list[str]]:
    """The uuids by request."""
    return {name: [grant.uuid for grant in given] for name, given in grants.items()}
