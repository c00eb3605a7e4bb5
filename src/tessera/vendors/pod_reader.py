"""Converts API pods to core values: what a pod requests and what it holds.

Requests fail closed: a value that cannot be honoured refuses the pod. Holdings fail safe: what can be read counts,
what cannot be read blocks the node, and where positions cannot be trusted every container counts as running.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from tessera.core.fit.card_rules import SETTINGS
from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.grants import Grant, Grants, Span
from tessera.core.model.requests import (
    MAX_ANNOTATION,
    UNCONSTRAINED,
    ContainerRequest,
    PodRequest,
    Request,
    Role,
    Weights,
    refuse_container_count,
)
from tessera.core.policies import POLICIES
from tessera.vendors.annotation_values import Choice, comma_list, switch
from tessera.vendors.base import Vendor
from tessera.vendors.claims.allocations import read_claim_devices
from tessera.vendors.drafts import BadPod, BadRequest, Resources
from tessera.wire import keys
from tessera.wire.errors import WireError, quoted
from tessera.wire.golang import parse_bool, parse_integer
from tessera.wire.keys import SCORING_WEIGHTS
from tessera.wire.objects import Container, Pod
from tessera.wire.pod_devices import (
    CONTAINER_END,
    DEVICE_END,
    MigAllocation,
    decode_mig_allocations,
    salvage_pod_devices,
    split_legacy_uuid,
)

_NAMES = ("slot", "core", "memory")


def decode_scoring_weights(text: str) -> Weights:
    try:
        weights = _parse_weights(text)
    except WireError as error:
        raise WireError(f"invalid {SCORING_WEIGHTS} annotation {quoted(text)}: {error}") from error
    return Weights(**weights)


def _parse_weights(text: str) -> dict[str, int]:
    parts = text.split(",")
    if len(parts) != len(_NAMES):
        raise WireError("expected slot, core, and memory weights")
    weights: dict[str, int] = {}
    for part in parts:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise WireError("expected key=value entries")
        if name in weights:
            raise WireError(f"duplicate {quoted(name)} weight")
        weights[name] = _weight(name, value)
    if not any(weights.values()):
        raise WireError("at least one weight must be positive")
    return weights


def _weight(name: str, text: str) -> int:
    weight = parse_integer(text)
    if weight is None:
        raise WireError(f"{quoted(name)} weight must be an integer")
    if weight < 0:
        raise WireError(f"{quoted(name)} weight must not be negative")
    if name not in _NAMES:
        raise WireError(f"unknown weight {quoted(name)}")
    return weight


REMEMBERED = 1024
"""distinct resource lists kept; then the cache is cleared"""
MAX_REMEMBERED_AMOUNTS, LONGEST_REMEMBERED = 64, 4096
"""resources of one container, and characters of one allocation: longer ones would fill the memory"""
MAX_ENTRIES = 5_000
"""cards of one allocation: a hundred times what a pod gets on the largest nodes, and 40 ms of reading"""
RULE_ANNOTATIONS = {setting: keys.card_rule(setting) for setting in SETTINGS}
POD_ANNOTATIONS = (
    keys.NUMA_BIND, keys.NODE_POLICY, keys.DEVICE_POLICY, keys.SCORING_WEIGHTS, *RULE_ANNOTATIONS.values()
)  # fmt: skip
"""read for every vendor"""
POD_CHOICES = (
    Choice(key=keys.NODE_POLICY, words=tuple(name for name, policy in POLICIES.items() if policy.nodes)),
    Choice(
        key=keys.DEVICE_POLICY,
        words=tuple(name for name, policy in POLICIES.items() if policy.cards),
        split=comma_list,
    ),
    switch(keys.NUMA_BIND),
)
"""those of them whose values are a closed set"""
LIMIT = re.compile("[1-9][0-9]{0,8}")
"""numbers for card rules"""
SIDECAR_POLICY = "Always"
ENDED = frozenset({"Succeeded", "Failed"})
RUNNING = Span(Role.APP)


@dataclass(frozen=True, slots=True)
class PolicyDefaults:
    """The policies of pods that name none."""

    node: str = "binpack"
    device: str = "spread"


def pod_request(
    pod: Pod, vendors: Mapping[str, Vendor], defaults: PolicyDefaults = PolicyDefaults()
) -> PodRequest | BadPod:
    """Read one pod's request. To read many pods, keep a `PodReader`."""
    return PodReader(vendors, defaults).request(pod)


class PodReader:
    """Reads pods with one set of vendors. Caches parsed amounts, because most pods are replicas of others."""

    def __init__(self, vendors: Mapping[str, Vendor], defaults: PolicyDefaults = PolicyDefaults()) -> None:
        self._vendors = vendors
        self._defaults = defaults
        self._read: dict[Hashable, tuple[Request, ...] | BadRequest] = {}
        self._by_name: dict[str, set[str]] = {}
        """resource -> keys of the vendors that read it"""
        self._allocated: dict[str, dict[str, Vendor]] = {}
        """annotation -> vendors that write it, by key"""
        self._grants: dict[tuple[str, str], tuple[Grants, ...]] = {}
        """(vendor, allocation) -> what it says, where all of it can be read"""
        self.forget()

    def forget(self) -> None:
        """Clear all caches, because the vendors changed."""
        self._read.clear()
        self._grants.clear()
        self._allocated.clear()
        self._by_name.clear()
        for key in sorted(self._vendors):
            vendor = self._vendors[key]
            for name in vendor.names.all:
                self._by_name.setdefault(name, set()).add(key)
            self._allocated.setdefault(vendor.keys.allocated, {})[key] = vendor

    def request(self, pod: Pod) -> PodRequest | BadPod:
        """The pod's request, or what is wrong with it. Every container has an entry, with or without requests."""
        containers = _containers(pod)
        too_many = refuse_container_count(len(containers))
        if too_many:
            return BadPod("", too_many)
        asks = []
        for container, role in containers:
            requests = self._requests(container)
            if isinstance(requests, BadRequest):
                return BadPod(container.name, requests.text)
            asks.append(ContainerRequest(container.name, role, requests))
        annotations = pod.annotations
        asked = sorted({request.vendor for ask in asks for request in ask.requests})
        too_long = self._too_long(annotations, asked)
        if too_long:
            return BadPod("", too_long)
        weights = _weights(annotations)
        if isinstance(weights, BadPod):
            return weights
        limits = _limits(annotations)
        if isinstance(limits, BadPod):
            return limits
        constraints = ((key, self._vendors[key].constraint(annotations)) for key in asked)
        request = PodRequest(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            containers=tuple(asks),
            constraints=tuple((key, constraint) for key, constraint in constraints if constraint != UNCONSTRAINED),
            numa_bind=parse_bool(annotations.get(keys.NUMA_BIND, "")) or False,
            node_policy=annotations.get(keys.NODE_POLICY, self._defaults.node),
            device_policy=annotations.get(keys.DEVICE_POLICY, self._defaults.device),
            weights=weights,
            limits=limits,
        )
        excess = request.excess() if asked else ""
        return BadPod("", excess) if excess else request

    def _too_long(self, annotations: Mapping[str, str], asked: Iterable[str]) -> str:
        """Which annotation is too long to be read; empty if none is. A pod that asks for no devices has none."""
        read = [key for vendor in asked for key in self._vendors[vendor].keys.constraining]
        for key in (*read, *POD_ANNOTATIONS) if read else ():
            size = len(annotations.get(key, ""))
            if size > MAX_ANNOTATION:
                return f"annotation {key} has {size} characters; at most {MAX_ANNOTATION}"
        return ""

    def _requests(self, container: Container) -> tuple[Request, ...] | BadRequest:
        limits, requests = container.resources.limits or {}, container.resources.requests or {}
        if not limits and not requests:
            return ()
        amounts = tuple(limits.items()), tuple(requests.items())
        answer = self._read.get(amounts)
        if answer is None:
            answer = self._read_requests(Resources(limits, requests))
            if len(limits) + len(requests) <= MAX_REMEMBERED_AMOUNTS:
                if len(self._read) >= REMEMBERED:
                    self._read.clear()
                self._read[amounts] = answer
        return answer

    def _read_requests(self, resources: Resources) -> tuple[Request, ...] | BadRequest:
        found = []
        named = (self._by_name[name] for name in (*resources.limits, *resources.requests) if name in self._by_name)
        for key in sorted(set[str]().union(*named)):
            answer = self._vendors[key].request(resources)
            if isinstance(answer, BadRequest):
                return answer
            if answer is not None:
                found.append(answer)
        return tuple(found)

    def facts(self, pod: Pod) -> PodFacts | None:
        """What the pod holds on its node; None if it is not bound, has ended or has no allocation.

        Annotations of an unbound pod are not trusted: the Binding writes them together with the node.
        """
        if not pod.spec.node_name or pod.status.phase in ENDED:
            return None
        annotations = pod.annotations
        written: dict[str, Vendor] = {}
        for name, vendors in self._allocated.items():
            if name in annotations:
                written.update(vendors)
        if len(written) > 1:
            written = dict(sorted(written.items()))
        return self._facts(pod, written) if written or keys.CLAIM_DEVICES in annotations else None

    def _facts(self, pod: Pod, written: Mapping[str, Vendor]) -> PodFacts:
        """From the allocations of the vendors that have `written` one."""
        annotations = pod.annotations
        spans = container_spans(pod)
        reservations, problems = _reservations(annotations)
        if keys.CLAIM_DEVICES in annotations:
            problems += _claim_devices(pod)[1]
        grants: dict[str, tuple[Grants, ...]] = {}
        for key, vendor in written.items():
            text = annotations[vendor.keys.allocated]
            # With MIG reservations the allocation alone is not the whole record.
            is_plain = not reservations
            found = self._grants.get((key, text)) if is_plain else None
            if found is None:
                found, unreadable = _grants(vendor, text, reservations)
                problems += unreadable
                if is_plain and not unreadable and len(text) <= LONGEST_REMEMBERED:
                    if len(self._grants) >= REMEMBERED:
                        self._grants.clear()
                    self._grants[key, text] = found
            if len(found) < len(spans):
                # HAMi omits entries of containers without devices, so positions cannot be trusted.
                spans = ()
            grants[key] = found
        metadata = pod.metadata
        name = f"{metadata.namespace}/{metadata.name}"
        return PodFacts(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            node=pod.spec.node_name,
            spans=spans,
            grants=grants,
            stray_mig=tuple([(stray.uuid, stray.slot) for stray in reservations.values()]),
            settings=tuple([(key, extra) for key, v in written.items() if (extra := v.settings(annotations))]),
            problem=f"the allocation of pod {name} cannot be read: {problems[0]}" if problems else "",
        )


def claim_parts(pod: Pod) -> dict[str, Grants]:
    """What the pod's Binding recorded of its ResourceClaims, by their uids. What cannot be read is a problem of the
    pod's facts."""
    return _claim_devices(pod)[0]


def _claim_devices(pod: Pod) -> tuple[dict[str, Grants], list[str]]:
    text = pod.annotations.get(keys.CLAIM_DEVICES)
    try:
        return ({} if text is None else read_claim_devices(text)), []
    except WireError as error:
        return {}, [str(error)]


def _containers(pod: Pod) -> list[tuple[Container, Role]]:
    init = [
        (container, Role.SIDECAR if container.restart_policy == SIDECAR_POLICY else Role.INIT)
        for container in pod.init_containers
    ]
    return [*init, *((container, Role.APP) for container in pod.app_containers)]


def _weights(annotations: Mapping[str, str]) -> Weights | BadPod:
    text = annotations.get(keys.SCORING_WEIGHTS)
    if text is None:
        return Weights()
    try:
        return decode_scoring_weights(text)
    except WireError as error:
        return BadPod("", str(error))


def _limits(annotations: Mapping[str, str]) -> tuple[tuple[str, int], ...] | BadPod:
    """The numbers that the pod sets for card rules."""
    found = []
    for setting, key in sorted(RULE_ANNOTATIONS.items()):
        text = annotations.get(key)
        if text is None:
            continue
        if not LIMIT.fullmatch(text):
            return BadPod("", f"annotation {key}: {quoted(text)} is not a whole number from 1 to 999999999")
        found.append((setting, int(text)))
    return tuple(found)


def _grants(vendor: Vendor, text: str, reservations: Reservations) -> tuple[tuple[Grants, ...], list[str]]:
    """Grants by container, and what cannot be read. Removes the reservations that belong to a grant."""
    count = max(text.count(DEVICE_END), text.count(CONTAINER_END))
    if count > MAX_ENTRIES:
        return (), [f"it has {count} entries; at most {MAX_ENTRIES}"]
    entries, unreadable = salvage_pod_devices(text)
    found = []
    for c, container in enumerate(entries):
        found.append(tuple([_granted(vendor.decode(entry), reservations, (c, d)) for d, entry in enumerate(container)]))
    return tuple(found), unreadable


def container_spans(pod: Pod) -> tuple[Span, ...]:
    """When each container runs; an init container that succeeded does not run again."""
    if not pod.spec.init_containers:
        return (RUNNING,) * len(pod.app_containers)
    ended = {
        status.name
        for status in pod.status.init_container_statuses or []
        if status.state.terminated is not None and status.state.terminated.exit_code == 0
    }
    return tuple(Span(role, role is Role.INIT and container.name in ended) for container, role in _containers(pod))


Reservations = dict[tuple[int, int], MigAllocation]
"""by container and device position"""


def _reservations(annotations: Mapping[str, str]) -> tuple[Reservations, list[str]]:
    text = annotations.get(keys.MIG_ALLOCATIONS)
    if not text:
        return {}, []
    count = text.count("{")
    if count > MAX_ENTRIES:
        return {}, [f"{keys.MIG_ALLOCATIONS} has {count} entries; at most {MAX_ENTRIES}"]
    try:
        allocations = decode_mig_allocations(text)
    except WireError as error:
        return {}, [str(error)]
    return {(a.container, a.device): a for a in allocations}, []


def _granted(grant: Grant, reservations: Reservations, place: tuple[int, int]) -> Grant:
    """The grant with its MIG reservation, which is removed; reservations that remain in the end are stray."""
    uuid, _ = split_legacy_uuid(grant.uuid)
    reservation = reservations.get(place)
    if reservation is not None and reservation.uuid == uuid:
        del reservations[place]
        return replace(grant, uuid=uuid, mig=reservation.slot)
    return replace(grant, uuid=uuid) if uuid != grant.uuid else grant
