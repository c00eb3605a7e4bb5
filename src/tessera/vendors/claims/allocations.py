"""What ResourceClaims hold, and what is written when they get something: pure.

A claim holds what its status says, whichever scheduler wrote it. What cannot be read blocks the node of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import ceil

from tessera.core.grants import Grant, Grants, Span
from tessera.core.holdings import PodFacts
from tessera.core.requests import WHOLE_CARD_CORES, Role
from tessera.vendors.claims.asks import BadClaim, ClaimAsk
from tessera.vendors.claims.pools import MIB, PoolDevice, PoolDevices
from tessera.vendors.nvidia import Nvidia
from tessera.wire.claim_spec import DeviceConfiguration, on_node
from tessera.wire.quantity import NotAQuantity, binary_text, decimal_text, read
from tessera.wire.quotes import quoted
from tessera.wire.resource_api import (
    CORES,
    DRIVER,
    MEMORY,
    SHARES,
    AllocatedDevice,
    AllocatedDevices,
    Allocation,
    ResourceClaim,
)

FROM_CLASS, FROM_CLAIM = "FromClass", "FromClaim"
HELD = (Span(Role.CLAIM),)


def claim_facts(claim: ResourceClaim, pools: Mapping[str, PoolDevices]) -> PodFacts | None:
    """What an allocated claim holds, as a holder under its own uid; None if it has none of our driver's devices."""
    devices = claim.devices_of(DRIVER)
    if not devices:
        return None
    metadata = claim.metadata
    pool = pools.get(devices[0].pool)
    grants: list[Grant] = []
    problem = ""
    for each in devices:
        found = _grant(each, pool if each.pool == devices[0].pool else None)
        if isinstance(found, str):
            problem = problem or found
        elif found is not None:
            grants.append(found)
    return PodFacts(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        # Pools are named after their nodes; a pool that is not there yet has no other name.
        node=pool.node if pool is not None and pool.node else devices[0].pool,
        spans=HELD,
        grants={Nvidia.key: (tuple(grants),)},
        problem=f"the allocation of ResourceClaim {metadata.namespace}/{metadata.name} cannot be read: {problem}"
        if problem
        else "",
    )


def _grant(allocated: AllocatedDevice, pool: PoolDevices | None) -> Grant | str | None:
    """What one device gives; None if there is no such card any more, or for an administrator's access, which takes
    nothing; or what is wrong."""
    if pool is None or pool.problem:
        why = pool.problem if pool is not None else "it is not there, or the claim has devices of another pool"
        return f"pool {quoted(allocated.pool)}: {why}"
    device = pool.devices.get(allocated.device)
    if device is None:
        cards = {each.uuid.lower() for each in pool.devices.values()}
        is_of_a_card = any(allocated.device.startswith(uuid) for uuid in cards)
        return f"device {quoted(allocated.device)} is not in its pool" if is_of_a_card else None
    if allocated.admin_access:
        return None
    consumed = allocated.consumed_capacity
    if not device.published.shared or not consumed:
        return whole_device(device)
    amounts = []
    for name, unit in ((MEMORY, MIB), (CORES, 1)):
        text = consumed.get(name, consumed.get(f"{DRIVER}/{name}", 0))
        amount = read(text)
        if isinstance(amount, NotAQuantity) or amount.value < 0:
            return f"{quoted(str(text))} of {name} is consumed of device {quoted(allocated.device)}"
        amounts.append(ceil(Fraction(amount.value) / unit))
    memory, cores = amounts
    return Grant(device.uuid, Nvidia.key, memory=memory, cores=cores)


def whole_device(device: PoolDevice) -> Grant:
    """All of a device that is not shared."""
    cores = device.cores if device.slot is not None else min(device.cores, WHOLE_CARD_CORES)
    return Grant(device.uuid, Nvidia.key, memory=device.memory, cores=cores, mig=device.slot)


def allocation(
    ask: ClaimAsk, grants: Mapping[str, Grants], pool: PoolDevices, *, new_share: Callable[[], str]
) -> Allocation | BadClaim:
    """What is written in a claim that gets these grants, by the requests that results name. `new_share` makes the
    uuids of shares."""
    results: list[AllocatedDevice] = []
    chosen = {each.name: each for alternatives in ask.requests for each in alternatives if each.name in grants}
    for name, given in grants.items():
        for grant in given:
            device = pool.device_of(grant)
            if device is None:
                return BadClaim(ask.name, f"card {grant.uuid} is not in the pool {pool.name} any more")
            is_admin = chosen[name].request.is_admin
            is_part = device.published.shared and not is_admin
            results.append(
                AllocatedDevice(
                    request=name,
                    driver=DRIVER,
                    pool=pool.name,
                    device=device.name,
                    admin_access=True if is_admin else None,
                    share_id=new_share() if is_part else None,
                    consumed_capacity=_consumed(grant) if is_part else None,
                    tolerations=chosen[name].tolerations or None,
                )
            )
    config = (*_class_config(ask, {name: each.class_name for name, each in chosen.items()}), *_claim_config(ask))
    return Allocation(AllocatedDevices(tuple(results), config or None), on_node(pool.node))


def _consumed(grant: Grant) -> dict[str, str | int | float]:
    return {MEMORY: binary_text(grant.memory * MIB), CORES: decimal_text(grant.cores), SHARES: decimal_text(1)}


def _class_config(ask: ClaimAsk, classes: Mapping[str, str]) -> Iterator[DeviceConfiguration]:
    by_class = dict(ask.class_config)
    for name, class_name in classes.items():
        for each in by_class.get(class_name, ()):
            yield DeviceConfiguration(source=FROM_CLASS, requests=(name,), opaque=each.opaque)


def _claim_config(ask: ClaimAsk) -> Iterator[DeviceConfiguration]:
    for each in ask.config:
        yield DeviceConfiguration(source=FROM_CLAIM, requests=each.requests, opaque=each.opaque)
