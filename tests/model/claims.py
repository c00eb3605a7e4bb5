"""ResourceClaims of the model: what pods ask with them, kube-controller-manager's part, and a stock allocator.

The controller makes claims of templates some time after their pods, names them in the pods' status, and takes back what
pods that are over have used. A stock kube-scheduler, whose caches are late, allocates devices that are not Tessera's.
What claims use is counted here from API objects alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import replace

from tessera.kube.errors import ApiError
from tessera.wire.objects import Metadata, OwnerReference, Pod, PodClaim
from tessera.wire.resource_api import (
    DRIVER,
    Allocation,
    ClaimSpec,
    ClaimStatus,
    Consumer,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from tests.model import device_usage, shapes
from tests.model.apiserver import SimulatedApiserver
from tests.model.machines import STOCK, Machine
from tests.model.tables import Informer
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, pod
from tests.support.claim_scheduler import claiming, device_class, exact_request, published, templated
from tests.support.stepwise_scheduler import using_downward_api

CLASSES: Mapping[str, DeviceClass] = {DRIVER: device_class()}
FINALIZER = "resource.kubernetes.io/delete-protection"
SHARED = ("s0", "s1", "s2")
"""names of claims that several pods use, in each namespace"""
MIB = 2**20
EDITS = ("unprotect", "unprotect", "unreserve", "halve", "release")
"""what a person with enough rights does to a claim"""

TEMPLATES: Mapping[str, list[dict[str, Any]]] = {
    "small": [{"name": "gpu", "exactly": exact_request(memory=4000, cores=10)}],
    "large": [{"name": "gpu", "exactly": exact_request(memory=20000, cores=50)}],
    "memory": [{"name": "gpu", "exactly": exact_request()}],
    "alone": [{"name": "gpu", "exactly": exact_request(memory=4000, cores=100)}],
    "pair": [{"name": "gpu", "exactly": exact_request(memory=10000, cores=20, count=2)}],
    "two": [
        {"name": "a", "exactly": exact_request(memory=10000, cores=20)},
        {"name": "b", "exactly": exact_request(memory=4000)},
    ],
    "either": [
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "large", **exact_request(memory=30000, cores=60)},
                {"name": "small", **exact_request(memory=4000, cores=10)},
            ],
        }
    ],
}


@cache
def recipes() -> dict[str, PodBuilder]:
    classic = using_downward_api(gpu_pod(mem=10000, cores=30))
    made = {f"claim {name}": templated(pod(), template=name) for name in TEMPLATES}
    shared = {f"shared {name}": claiming(pod(), name) for name in SHARED}
    both = {
        "gpu and claim": templated(classic, template="small"),
        "gpu and shared": claiming(classic, "s0"),
        "two shared": claiming(pod(), "s0", "s1"),
    }
    return made | shared | both


@cache
def spec_of(template: str) -> ClaimSpec:
    return msgspec.convert({"devices": {"requests": TEMPLATES[template]}}, ClaimSpec)


def slice_of(machine: Machine, generation: int) -> ResourceSlice:
    """What the agent of a machine publishes of its cards."""
    shown = tuple(card for card in machine.cards if card["id"] not in machine.hidden)
    return published(NodeBuilder(machine.name, shown), generation=generation, managed=machine.kind != STOCK)


# -- counting


Part = tuple[str, str, int, int]
"""node, card, MiB and cores"""


def used_by(claim: ResourceClaim) -> Iterator[Part]:
    """Each device that a claim has."""
    for each in claim.devices_of(DRIVER):
        consumed = each.consumed_capacity or {}
        memory, cores = str(consumed.get("memory", "0")), str(consumed.get("cores", "0"))
        yield each.pool, each.device, _bytes(memory) // MIB, int(cores)


def _bytes(text: str) -> int:
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


def recorded(pod_: Pod) -> dict[str, list[Part]]:
    """What a bound pod says that it uses, by the uid of the claim."""
    text = pod_.annotations.get("tessera.io/claim-devices", "{}")
    return {
        uid: [(pod_.spec.node_name, each["uuid"], each["memory"], each["cores"]) for each in devices]
        for uid, devices in json.loads(text).items()
    }


def in_use(api: SimulatedApiserver, namespace: str | None = None) -> dict[str, list[Part]]:
    """By claim: what it has, and what pods that run use of it although it has that no more. A part that several of
    them name counts once, with the largest amount."""
    found: dict[str, list[Part]] = {}
    for claim in api.claims.objects.values():
        if namespace in (None, claim.metadata.namespace) and (has := list(used_by(claim))):
            found[claim.metadata.uid] = has
    for each in api.pods.objects.values():
        if namespace in (None, each.metadata.namespace) and device_usage.is_live(each):
            for uid, parts in recorded(each).items():
                found[uid] = _union(found.get(uid, []), parts)
    return found


def _union(some: list[Part], others: list[Part]) -> list[Part]:
    found = []
    for place in dict.fromkeys(part[:2] for part in (*some, *others)):
        one, other = (sorted((part[2:] for part in each if part[:2] == place), reverse=True) for each in (some, others))
        for mine, theirs in zip_longest(one, other, fillvalue=(0, 0)):
            found.append((*place, max(mine[0], theirs[0]), max(mine[1], theirs[1])))
    return found


def add_loads(api: SimulatedApiserver, node: str, cards: Mapping[str, device_usage.Capacity],
              loads: dict[str, device_usage.Load]) -> None:  # fmt: skip
    """Adds what is in use of claims on a node's cards."""
    for uid, parts in in_use(api).items():
        for pool, card, memory, cores in parts:
            if pool != node or card not in cards:
                continue
            load = loads.setdefault(card, device_usage.Load())
            whole = cores >= min(device_usage.WHOLE, cards[card].cores)
            load.slots += 1
            load.memory += memory
            load.cores += cards[card].cores if whole else cores
            load.tenants.add(uid)
            if whole:
                load.alone.add(uid)


def claims_of(api: SimulatedApiserver, pod_: Pod) -> list[ResourceClaim]:
    """Those of a pod that exist."""
    every = (*(pod_.spec.resource_claims or ()), *(pod_.status.resource_claim_statuses or ()))
    names = {each.resource_claim_name for each in every if each.resource_claim_name}
    keys = [f"{pod_.metadata.namespace}/{name}" for name in sorted(names)]
    return [api.claims.objects[key] for key in keys if key in api.claims.objects]


# -- kube-controller-manager and tenants


@dataclass
class ClaimController:
    """Methods without arguments are events. They return a description, or None if nothing could happen."""

    api: SimulatedApiserver
    rng: random.Random
    namespaces: tuple[str, ...]
    edited: set[str] = field(default_factory=set)
    """uids of claims that a person has changed, and of pods that such a claim was for"""

    def control_claims(self) -> str | None:
        actions = list(self._due())
        return self.rng.choice(actions)() if actions else None

    def settle(self) -> bool:
        """Do all that is due; whether anything was."""
        busy = False
        while actions := list(self._due()):
            actions[0]()
            busy = True
        return busy

    def create_claim(self) -> str | None:
        """A tenant makes a claim for several pods."""
        namespace, name = self.rng.choice(self.namespaces), self.rng.choice(SHARED)
        key, template = f"{namespace}/{name}", self.rng.choice(sorted(TEMPLATES))
        if key in self.api.claims.objects:
            return None
        self.api.create_claim(Metadata(name=name, namespace=namespace), spec_of(template))
        return f"{key}: {template}"

    def delete_claim(self) -> str | None:
        if not self.api.claims.objects:
            return None
        key = self.rng.choice(list(self.api.claims.objects))
        claim = self.api.claims.objects[key]
        self._note(claim)
        if claim.metadata.finalizers:
            self.api.put_claim(replace(claim, metadata=replace(claim.metadata, deletion_timestamp="now")))
        else:
            self.api.claims.remove(key)
        return key

    def edit_claim(self) -> str | None:
        """A person takes away, one at a time, what protects a claim: the pods that use it run on."""
        if not self.api.claims.objects:
            return None
        key = self.rng.choice(list(self.api.claims.objects))
        claim, how = self.api.claims.objects[key], self.rng.choice(EDITS)
        metadata, status = claim.metadata, claim.status
        if how == "unprotect" and metadata.deletion_timestamp:
            self._note(claim)
            return self._collect(key)
        if how == "unprotect":
            metadata = replace(metadata, finalizers=None)
        elif how == "unreserve":
            status = replace(status, reserved_for=None)
        elif how == "halve" and status.allocation is not None:
            status = replace(status, allocation=_halved(status.allocation))
        elif how == "release":
            status = replace(status, allocation=None, reserved_for=None)
        self._note(claim)
        self.api.put_claim(replace(claim, metadata=metadata, status=status))
        return f"{key}: {how}"

    def _note(self, claim: ResourceClaim) -> None:
        found = (each for each in self.api.pods.objects.values() if claim in claims_of(self.api, each))
        owners = (each.uid for each in claim.metadata.owner_references or ())
        self.edited |= {claim.metadata.uid, *owners, *(each.metadata.uid for each in found)}

    def _due(self) -> Iterator[Any]:
        pods = self.api.pods.objects.values()
        live = {each.metadata.uid: each for each in pods if each.status.phase not in device_usage.OVER}
        owned: dict[str, ResourceClaim] = {}
        for key, claim in self.api.claims.objects.items():
            owner = next((each.uid for each in claim.metadata.owner_references or ()), "")
            if owner and owner not in live:
                yield lambda key=key: self._collect(key)
                continue
            owned[owner] = claim
            used = claim.status.reserved_for or ()
            if any(each.uid not in live for each in used):
                yield lambda claim=claim: self._clean(claim, live)
            elif not used and claim.metadata.deletion_timestamp:
                yield lambda key=key: self._collect(key)
        for each in live.values():
            template = next((own for own in each.spec.resource_claims or () if own.resource_claim_template_name), None)
            if template is None or each.metadata.deletion_timestamp or each.spec.node_name:
                continue
            known = owned.get(each.metadata.uid)
            if known is None:
                yield lambda each=each, template=template: self._make(each, template)
            elif not any(
                s.resource_claim_name == known.metadata.name for s in each.status.resource_claim_statuses or ()
            ):
                yield lambda each=each, template=template, known=known: self._name(each, template, known)

    def _make(self, owner: Pod, own: PodClaim) -> str:
        reference = OwnerReference(kind="Pod", name=owner.metadata.name, uid=owner.metadata.uid, controller=True)
        name = f"{owner.metadata.name}-{own.name}-{self.rng.randrange(10**6)}"
        metadata = Metadata(name=name, namespace=owner.metadata.namespace, owner_references=[reference])
        self.api.create_claim(metadata, spec_of(own.resource_claim_template_name or ""))
        return f"{name} for {owner.metadata.uid}"

    def _name(self, owner: Pod, own: PodClaim, claim: ResourceClaim) -> str:
        named = (PodClaim(name=own.name, resource_claim_name=claim.metadata.name),)
        self.api.put_pod(replace(owner, status=replace(owner.status, resource_claim_statuses=named)))
        return f"{claim.metadata.name} in {owner.metadata.uid}"

    def _collect(self, key: str) -> str:
        self.api.claims.remove(key)
        return f"{key} gone"

    def _clean(self, claim: ResourceClaim, live: Mapping[str, Pod]) -> str:
        left = tuple(each for each in claim.status.reserved_for or () if each.uid in live)
        is_over = not left and bool(claim.metadata.finalizers)
        allocation = None if is_over else claim.status.allocation
        status = replace(claim.status, allocation=allocation, reserved_for=left or None)
        metadata = replace(claim.metadata, finalizers=None) if is_over else claim.metadata
        if is_over and claim.metadata.deletion_timestamp:
            return self._collect(f"{claim.metadata.namespace}/{claim.metadata.name}")
        self.api.put_claim(replace(claim, metadata=metadata, status=status))
        return f"{claim.metadata.name} for {len(left)} pods"


def _halved(allocation: Allocation) -> Allocation:
    results = tuple(
        replace(each, consumed_capacity={"memory": f"{memory // 2 or 1}Mi", "cores": str(cores // 2)})
        for each, (_, _, memory, cores) in zip(
            allocation.devices.results or (), used_by(ResourceClaim(status=ClaimStatus(allocation))), strict=True
        )
    )
    return replace(allocation, devices=replace(allocation.devices, results=results))


# -- a stock kube-scheduler


class StockScheduler:
    """Takes the first device that fits, by caches that may be late."""

    def __init__(self, api: SimulatedApiserver, rng: random.Random) -> None:
        self._api = api
        self._rng = rng
        self.claims = Informer(api.claims, _Cache())
        self.slices = Informer(api.slices, _Cache())
        self.allocated = 0

    def allocate(self) -> str | None:
        """One attempt for one pod that is left to it."""
        waiting = [
            (key, each)
            for key, each in self._api.pods.objects.items()
            if STOCK in (each.metadata.labels or {})
            and not each.spec.node_name
            and not each.metadata.deletion_timestamp
        ]
        if not waiting:
            return None
        key, asking = self._rng.choice(waiting)
        status = {each.name: each.resource_claim_name for each in asking.status.resource_claim_statuses or ()}
        names = [own.resource_claim_name or status.get(own.name) for own in asking.spec.resource_claims or ()]
        seen = [self.claims.seen.get(f"{asking.metadata.namespace}/{name}") for name in names]
        known = [claim for claim in seen if claim is not None]
        if len(known) < len(names) or len(known) != 1:
            return None
        claim, consumer = known[0], Consumer(resource="pods", name=asking.metadata.name, uid=asking.metadata.uid)
        found = claim.status.allocation or self._first_fit(claim)
        if found is None:
            return f"{key}: no device"
        results = found.devices.results or ()
        consumers = {each.uid: each for each in (*(claim.status.reserved_for or ()), consumer)}
        status_ = {"allocation": found, "reservedFor": tuple(consumers.values())}
        try:
            self._api.write_status(claim, status_)
        except ApiError as error:
            return f"{key}: {error}"
        self.allocated += 1
        bound = replace(asking, spec=replace(asking.spec, node_name=results[0].pool))
        self._api.put_pod(replace(bound, status=replace(bound.status, phase="Running")))
        return f"{key} on {results[0].device}"

    def _first_fit(self, claim: ResourceClaim) -> Allocation | None:
        requests = claim.spec.devices.requests or ()
        exact = requests[0].exactly
        if len(requests) != 1 or exact is None or exact.count != 1:
            return None
        asked = (exact.capacity.requests if exact.capacity is not None else None) or {}
        used: dict[str, int] = {}
        for other in self.claims.seen.values():
            for _, card, memory, _ in used_by(other):
                used[card] = used.get(card, 0) + memory
        for each in self.slices.seen.values():
            for device in each.spec.devices or ():
                if device.taints:
                    continue
                total = _bytes(str((device.capacity or {})["memory"].value))
                memory = _bytes(str(asked.get("memory", total)))
                if used.get(device.name, 0) * MIB + memory <= total:
                    result = {
                        "request": requests[0].name, "driver": DRIVER, "pool": each.spec.pool.name,
                        "device": device.name, "shareID": f"{claim.metadata.uid}-stock",
                        "consumedCapacity": {"memory": str(memory), "cores": "0"},
                    }  # fmt: skip
                    return msgspec.convert({"devices": {"results": [result]}}, Allocation)
        return None


class _Cache:
    def put(self, key: str, obj: Any) -> None: ...

    def drop(self, key: str) -> None: ...

    def synced(self) -> None: ...


def stock_pod(recipe: str) -> Pod:
    """A pod that is left to the stock kube-scheduler."""
    built = recipes()[recipe].api()
    return replace(built, metadata=replace(built.metadata, labels={STOCK: ""}))


def template(recipe: str) -> Pod:
    """A pod of any recipe, with claims or without."""
    return recipes()[recipe].api() if recipe in recipes() else shapes.template(recipe)
