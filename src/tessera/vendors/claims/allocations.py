"""What ResourceClaims hold, and what is written when they get something: pure.

A claim holds what its status says, whichever scheduler wrote it. What cannot be read blocks the node of the pool. The
agent reads amounts by the same rule (`consumed_amounts`), so no container gets more than is charged. What a bound pod
uses of a claim counts, whatever became of the claim since: `shortfalls`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from math import ceil

from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.devices import MigSlot
from tessera.core.model.grants import Grant, Grants, Span
from tessera.core.model.requests import WHOLE_CARD_CORES, Role
from tessera.vendors.claims.asks import BadClaim, ClaimAsk
from tessera.vendors.claims.pools import MIB, PoolDevices, full_name
from tessera.vendors.nvidia import Nvidia
from tessera.wire.errors import quoted
from tessera.wire.golang import INT32_MAX
from tessera.wire.pod_devices import ClaimDevice, decode_claim_devices, encode_claim_devices
from tessera.wire.quantity import NotAQuantity, binary_text, decimal_text, read
from tessera.wire.resource_api import (
    CORES,
    DRIVER,
    MEMORY,
    SHARES,
    AllocatedDevice,
    AllocatedDevices,
    Allocation,
    DeviceConfiguration,
    ResourceClaim,
    on_node,
)

FROM_CLASS, FROM_CLAIM = "FromClass", "FromClaim"
HELD = (Span(Role.CLAIM),)
UUID_PREFIX = "GPU-"
"""of NVIDIA's uuids, whose other letters are small"""


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
        grant, why = _grant(each, pool if each.pool == devices[0].pool else None)
        problem = problem or why
        if grant is not None:
            grants.append(grant)
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


def _grant(allocated: AllocatedDevice, pool: PoolDevices | None) -> tuple[Grant | None, str]:
    """What one device gives, and what is wrong with it. None: nothing (an administrator's access), or not known."""
    if pool is None or pool.problem:
        why = pool.problem if pool is not None else "it is not there, or the claim has devices of another pool"
        return _unpublished(allocated), f"pool {quoted(allocated.pool)}: {why}"
    device = pool.devices.get(allocated.device)
    if device is None:
        cards = {each.uuid.lower() for each in pool.devices.values()}
        is_of_a_card = any(allocated.device.startswith(uuid) for uuid in cards)
        why = f"device {quoted(allocated.device)} is not in its pool" if is_of_a_card else ""
        return _unpublished(allocated), why
    if allocated.admin_access:
        return None, ""
    whole = whole_amounts(device.memory, device.cores, slot=device.slot)
    amounts = consumed_amounts(allocated, whole, shared=device.published.shared)
    if isinstance(amounts, str):
        return None, amounts
    return Grant(device.uuid, Nvidia.key, memory=amounts.memory, cores=amounts.cores, mig=device.slot), ""


def _unpublished(allocated: AllocatedDevice) -> Grant | None:
    """Of a device that no slice shows, the amounts that the claim itself says: they count against quotas, and on the
    card if it is registered. Only cards are shared, and agents name their devices after them, in lower case."""
    if allocated.admin_access or not allocated.consumed_capacity:
        return None
    amounts = consumed_amounts(allocated, Amounts(0, 0), shared=True)
    if isinstance(amounts, str):
        return None
    is_uuid = allocated.device.startswith(UUID_PREFIX.lower())
    uuid = UUID_PREFIX + allocated.device[len(UUID_PREFIX) :] if is_uuid else allocated.device
    return Grant(uuid, Nvidia.key, memory=amounts.memory, cores=amounts.cores)


@dataclass(frozen=True, slots=True)
class Amounts:
    """What is taken of one device."""

    memory: int
    """MiB"""
    cores: int


def whole_amounts(memory: int, cores: int, *, slot: MigSlot | None) -> Amounts:
    """All of a device: of a card with scaled cores, what one container may have."""
    return Amounts(memory, cores if slot is not None else min(cores, WHOLE_CARD_CORES))


def consumed_amounts(allocated: AllocatedDevice, whole: Amounts, *, shared: bool) -> Amounts | str:
    """What a claim has of a device, or why that is not known: the one rule of scheduler and agent.

    Parts of a MiB and of a core count as whole ones. A device that is not `shared`, or of which no consumption is
    written (an apiserver without consumable capacity gives it to one claim at a time), is the claim's as a whole.
    """
    consumed = allocated.consumed_capacity
    if not shared or not consumed:
        return whole
    found: dict[str, int] = {}
    for name, unit in ((full_name(MEMORY), MIB), (full_name(CORES), 1)):
        texts = [text for key, text in consumed.items() if full_name(key) == name]
        said = " and ".join(quoted(str(text)) for text in texts) or "nothing"
        amount = read(texts[0]) if len(texts) == 1 else NotAQuantity("")
        if isinstance(amount, NotAQuantity) or not 0 <= amount.value <= INT32_MAX * unit:
            return f"{said} of {name} is consumed of device {quoted(allocated.device)}"
        found[name] = ceil(Fraction(amount.value) / unit)
    if not found[full_name(MEMORY)]:
        return f"no memory is consumed of device {quoted(allocated.device)}"
    return Amounts(found[full_name(MEMORY)], found[full_name(CORES)])


# -- what bound pods use


def claim_devices_text(parts: Mapping[str, Grants]) -> str:
    """What the Binding of a pod records: the grants of its claims, by uid."""
    return encode_claim_devices({uid: tuple(map(_recorded, grants)) for uid, grants in parts.items()})


def _recorded(grant: Grant) -> ClaimDevice:
    if grant.mig is None:
        return ClaimDevice(grant.uuid, grant.memory, grant.cores)
    place = grant.mig.placement
    return ClaimDevice(grant.uuid, grant.memory, grant.cores, grant.mig.profile, place.start, place.size)


def read_claim_devices(text: str) -> dict[str, Grants]:
    """The grants that a Binding recorded, by the uid of the claim. Raises WireError."""
    return {
        uid: tuple(
            Grant(each.uuid, Nvidia.key, memory=each.memory, cores=each.cores, mig=each.slot) for each in devices
        )
        for uid, devices in decode_claim_devices(text).items()
    }


def shortfalls(users: Iterable[tuple[str, str, Grants]], shown: PodFacts | None) -> dict[str, Grants]:
    """What pods use of one claim beyond what the ledger holds for it: by pod, the first one that uses a part has it.

    `users` are pods (uid, node, recorded grants) in a fixed order. Together with what is `shown`, each card then holds
    the largest amount that any of them says, and a part that several pods share is counted once.
    """
    counted: dict[tuple[str, str, MigSlot | None], list[Amounts]] = {}
    if shown is not None:
        given = (grant for containers in shown.grants.values() for grants in containers for grant in grants)
        counted = {(shown.node, *place): parts for place, parts in _by_place(given).items()}
    found: dict[str, Grants] = {}
    for pod, node, grants in users:
        missing = []
        for (uuid, mig), parts in _by_place(grants).items():
            known = counted.setdefault((node, uuid, mig), [])
            for used, have in zip_longest(parts, known[: len(parts)]):
                if have is None:
                    missing.append(Grant(uuid, Nvidia.key, memory=used.memory, cores=used.cores, mig=mig))
                    continue
                memory, cores = max(used.memory - have.memory, 0), max(used.cores - have.cores, 0)
                if mig is None and (memory or cores):  # An instance is held as a whole.
                    missing.append(Grant(uuid, Nvidia.key, memory=memory, cores=cores, slots=0))
            largest = (_larger(*pair) for pair in zip_longest(parts, known))
            counted[node, uuid, mig] = list(largest)
        if missing:
            found[pod] = tuple(missing)
    return found


def _by_place(grants: Iterable[Grant]) -> dict[tuple[str, MigSlot | None], list[Amounts]]:
    """By card and instance, the largest first: a claim may have several parts of one card."""
    found: dict[tuple[str, MigSlot | None], list[Amounts]] = {}
    for grant in sorted(grants, key=lambda each: (-each.memory, -each.cores)):
        found.setdefault((grant.uuid, grant.mig), []).append(Amounts(grant.memory, grant.cores))
    return found


def _larger(one: Amounts | None, other: Amounts | None) -> Amounts:
    parts = [each for each in (one, other) if each is not None]
    return Amounts(max(each.memory for each in parts), max(each.cores for each in parts))


def with_parts(facts: PodFacts, missing: Grants) -> PodFacts:
    """A pod that also holds these parts of its claims, for as long as it runs."""
    if not missing:
        return facts
    own = facts.grants.get(Nvidia.key, ())
    position = max(len(own), len(facts.spans))
    containers = (*own, *((),) * (position - len(own)), missing)
    # Where spans end early, all behind them counts as app containers: never less.
    spans = (*facts.spans, *HELD) if len(facts.spans) == position else facts.spans
    return facts._replace(spans=spans, grants={**facts.grants, Nvidia.key: containers})


# -- what is written


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
