"""The pods of a trace as ResourceClaims: read, placed, written and counted by the code that serves real ones.

One MiB of a claim is a thousandth of a card, as everywhere in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import msgspec

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.devices import MIG, Device
from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.vendors.claims import (
    BadClaim,
    ClaimAsk,
    PoolDevices,
    allocation,
    claim_facts,
    pool_devices,
    read_claim,
    with_claims,
)
from tessera.vendors.claims.pools import MIB, SLICE_COUNTER
from tessera.vendors.drafts import BadPod
from tessera.wire.claim_spec import CelSelector, DeviceClass, DeviceClassSpec, DeviceSelector
from tessera.wire.objects import Metadata
from tessera.wire.quantity import binary_text, decimal_text
from tessera.wire.resource_api import (
    CORES,
    DRIVER,
    MANAGED,
    MEMORY,
    NO_SCHEDULE,
    Attribute,
    Capacity,
    ClaimStatus,
    Counter,
    CounterConsumption,
    Pool,
    ResourceClaim,
    ResourceSlice,
    SliceDevice,
    SliceSpec,
    Taint,
)
from tessera_lab.simulator.traces import Trace, TraceRequest

NAME, REQUEST = "claim", "gpu"
"""of each pod's only claim"""
CLASSES = {
    DRIVER: DeviceClass(
        spec=DeviceClassSpec(selectors=(DeviceSelector(CelSelector(f"device.driver == '{DRIVER}'")),)),
    )
}


def as_claims(trace: Trace) -> Trace:
    """The same trace, whose pods claim their cards."""
    return replace(trace, pods=tuple(replace(pod, ask=replace(pod.ask, as_claim=True)) for pod in trace.pods))


@lru_cache(maxsize=4096)
def claim_ask(ask: TraceRequest) -> ClaimAsk:
    """What the claim of a pod asks for."""
    exactly: dict[str, object] = {
        "deviceClassName": DRIVER,
        "count": ask.cards,
        "capacity": {"requests": {MEMORY: binary_text(ask.milli * MIB), CORES: decimal_text(ask.card_cores)}},
    }
    if ask.models:
        accepted = ", ".join(f"'{model}'" for model in ask.model_words)
        expression = f"device.attributes['{DRIVER}'].model in [{accepted}]"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    spec = {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}}
    found = read_claim(msgspec.convert({"metadata": {"name": NAME}, "spec": spec}, ResourceClaim), CLASSES)
    assert not isinstance(found, BadClaim)  # a trace asks for nothing that is refused
    return found


def claiming_request(pod: PodRequest, ask: TraceRequest) -> PodRequest:
    """The request of a pod whose cards a claim asks for."""
    found = with_claims(pod, [claim_ask(ask)])
    assert not isinstance(found, BadPod)  # as above
    return found[0]


def written_facts(uid: str, ask: TraceRequest, placement: Placement, pool: PoolDevices) -> PodFacts:
    """What the claim of a pod holds once its allocation is written: read from what is written."""
    grants = {REQUEST: tuple(grant for held in placement.grants.values() for given in held for grant in given)}
    given = allocation(claim_ask(ask), grants, pool, new_share=lambda: uid)
    assert not isinstance(given, BadClaim)  # the card was just chosen
    facts = claim_facts(ResourceClaim(Metadata(uid=uid, name=uid), status=ClaimStatus(given)), {pool.name: pool})
    assert facts is not None  # it has a device of ours
    return facts


def pool_of(node: str, cards: Iterable[Device]) -> PoolDevices:
    """What a node would publish of its cards."""
    devices = tuple(device for card in cards for device in _devices(card))
    spec = SliceSpec(
        driver=DRIVER,
        pool=Pool(name=node, generation=1, resource_slice_count=1),
        node_name=node,
        devices=devices,
    )
    return pool_devices([ResourceSlice(spec)])


def _devices(card: Device) -> Iterable[SliceDevice]:
    if card.mode != MIG:
        yield _device(card, card.uuid, memory=card.memory, cores=card.cores)
        return
    for profile in card.mig_profiles:
        for place in profile.placements:
            counters = {f"{SLICE_COUNTER}{place.start + number}": Counter(value="1") for number in range(place.size)}
            device = _device(
                card, f"{card.uuid}-{profile.name}-{place.start}", memory=profile.memory, cores=profile.cores
            )
            yield msgspec.structs.replace(
                device,
                attributes={**(device.attributes or {}), "profile": Attribute(string=profile.name)},
                consumes_counters=(CounterConsumption(counter_set=card.uuid, counters=counters),),
                allow_multiple_allocations=None,
            )


def _device(card: Device, name: str, *, memory: int, cores: int) -> SliceDevice:
    return SliceDevice(
        name=name,
        attributes={
            "uuid": Attribute(string=card.uuid),
            "index": Attribute(number=card.index),
            "model": Attribute(string=card.model),
        },
        capacity={
            MEMORY: Capacity(value=binary_text(memory * MIB)),
            CORES: Capacity(value=decimal_text(cores)),
        },
        taints=(Taint(key=MANAGED, effect=NO_SCHEDULE),),
        allow_multiple_allocations=True,
    )
