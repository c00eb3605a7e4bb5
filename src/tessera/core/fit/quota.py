"""Namespace quotas on memory and cores.

Kubernetes lets any number of ResourceQuota objects limit one resource; the strictest wins, so every object's limit is
kept. What a pod counts is its effective use over all cards of a vendor (`demand`). A limit of 0 blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tessera.core.fit.card_checks import refuse_capacity, refuse_identity, refuse_sharing
from tessera.core.fit.device_rules import UNLIMITED, Ask, QuotaRoom, Rules
from tessera.core.model.arrays import CardArrays
from tessera.core.model.grants import NO_USE, Grants, Span, Use, effective_use, spans_of
from tessera.core.model.misfits import CardMisfit, Misfit, Reason, cards_misfit
from tessera.core.model.requests import WHOLE_CARD_CORES, PodRequest, Request

QUOTA_PREFIX = "limits."
"""of a resource in a ResourceQuota"""


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """One ResourceQuota, reduced to limits of device resources."""

    namespace: str
    name: str
    limits: Mapping[str, int]
    """by resource name, in the unit the user wrote"""
    doubtful: Mapping[str, str | int | float] = field(default_factory=dict)
    """what it says about resources under the makers' domains that may limit nothing, as written"""


@dataclass(slots=True)
class QuotaBook:
    """Limits by object and use by pod; room is what the strictest limit leaves."""

    _limits: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """(namespace, resource) -> limit by quota object"""
    _objects: dict[str, dict[str, QuotaFacts]] = field(default_factory=dict)
    """namespace -> quota objects by name"""
    _used: dict[tuple[str, str], Use] = field(default_factory=dict)
    """(namespace, vendor) -> use"""
    revision: int = 0
    """changes with every change of a limit"""

    def set_quota(self, facts: QuotaFacts) -> None:
        self.drop_quota(facts.namespace, facts.name)
        self._objects.setdefault(facts.namespace, {})[facts.name] = facts
        for resource, limit in facts.limits.items():
            self._limits.setdefault((facts.namespace, resource), {})[facts.name] = limit

    def drop_quota(self, namespace: str, name: str) -> None:
        self.revision += 1
        in_namespace = self._objects.get(namespace, {})
        old = in_namespace.pop(name, None)
        if not in_namespace:
            self._objects.pop(namespace, None)
        for resource in old.limits if old else ():
            by_object = self._limits[namespace, resource]
            del by_object[name]
            if not by_object:
                del self._limits[namespace, resource]

    def find(self, namespace: str, name: str) -> QuotaFacts | None:
        return self._objects.get(namespace, {}).get(name)

    def charge(self, namespace: str, vendor: str, use: Use, *, sign: int = 1) -> None:
        """Count a pod's use, or with sign -1 take it back."""
        old = self._used.get((namespace, vendor), NO_USE)
        new = old.plus(use) if sign > 0 else old.minus(use)
        if new == NO_USE:
            self._used.pop((namespace, vendor), None)
        else:
            self._used[namespace, vendor] = new

    def copy(self) -> QuotaBook:
        """The same limits and use; what is charged to one is not charged to the other."""
        limits = {key: dict(by_object) for key, by_object in self._limits.items()}
        return QuotaBook(limits, {name: dict(found) for name, found in self._objects.items()}, dict(self._used))

    def without_use(self) -> QuotaBook:
        """The same limits, of which nothing is used."""
        copied = self.copy()
        copied._used = {}
        return copied

    def limit(self, namespace: str, resource: str) -> int | None:
        limits = self._limits.get((namespace, resource)) if resource else None
        return min(limits.values()) if limits else None

    def used(self, namespace: str, vendor: str) -> Use:
        return self._used.get((namespace, vendor), NO_USE)

    @property
    def limits_anything(self) -> bool:
        return bool(self._limits)

    def room(self, namespace: str, rules: Rules, *, nominated: Use = NO_USE) -> QuotaRoom:
        """What the strictest limit leaves beside what pods use and are `nominated` for."""
        memory = self.limit(namespace, rules.quota_memory)
        cores = self.limit(namespace, rules.quota_cores)
        if memory is None and cores is None:
            return UNLIMITED
        used = self.used(namespace, rules.key).plus(nominated)
        return QuotaRoom(
            None if memory is None else memory * max(rules.quota_factor, 1) - used.memory,
            None if cores is None else cores - used.cores,
        )

    def state(self) -> tuple[object, object]:
        """For comparing ledgers."""
        objects = {(facts.namespace, facts.name): facts for each in self._objects.values() for facts in each.values()}
        return objects, dict(self._used)

    def doubtful(self, namespace: str) -> Iterator[QuotaFacts]:
        """The quotas of a namespace that may limit nothing."""
        return (facts for facts in self._objects.get(namespace, {}).values() if facts.doubtful)


def demand(spans: tuple[Span, ...], grants: Iterable[tuple[int, Grants]]) -> Use:
    """What a pod counts against quotas of one vendor: its effective use over all cards together.

    `grants` are those of its containers, each with the container's position.
    """
    return effective_use(
        spans,
        [
            (position, Use(grant.slots, grant.memory, min(grant.cores, WHOLE_CARD_CORES)), grant.mig is not None)
            for position, container in grants
            for grant in container
        ],
    )


def bounds(
    pod: PodRequest, vendor: str, *, largest_card: int = 0, mig: bool = False, exact: bool = True
) -> tuple[Use, Use]:
    """The least and the most that a pod may count, wherever it is placed.

    They differ where memory is asked in per cent (of a card of at most `largest_card` MiB), and where a request may be
    rounded up, at most to the whole card: by vendors that do not give `exact` amounts, and by MIG, whose instances
    moreover (some card is in `mig` mode) last for the life of the pod.
    """
    spans = spans_of(pod.roles)
    least, most = [], []
    for position, request in pod.requests:
        if request.vendor == vendor:
            count, cores = request.count, min(request.cores, WHOLE_CARD_CORES)
            least.append((position, Use(count, request.memory * count, cores * count), False))
            # A claim gets all of a card that is not shared.
            rounded = mig or not exact or request.accepts is not None
            memory = max(request.memory_on(largest_card), largest_card if rounded else 0)
            cores = WHOLE_CARD_CORES if rounded else cores
            most.append((position, Use(count, memory * count, cores * count), mig))
    return effective_use(spans, least), effective_use(spans, most)


def payable(room: QuotaRoom, *, memory: int, cores: int) -> int | None:
    """How many cards of this size the room pays for; None = any number."""
    numbers = [
        max(left, 0) // each if each > 0 else (None if left >= 0 else 0)
        for left, each in ((room.memory, memory), (room.cores, cores))
        if left is not None
    ]
    return min((n for n in numbers if n is not None), default=None)


def shortage(pod: PodRequest, vendor: str, room: QuotaRoom) -> tuple[int, int] | None:
    """(container, how many of its cards the quota pays for) if a pod needs more than `room` on any node, else None."""
    least, _ = bounds(pod, vendor)
    if room.allows(least.memory, least.cores):
        return None
    asking = [(position, request) for position, request in pod.requests if request.vendor == vendor]
    for position, request in asking:
        cards = payable(room, memory=request.memory, cores=min(request.cores, WHOLE_CARD_CORES))
        if cards is not None and cards < request.count:
            return position, cards
    return asking[0][0], 0


def excess_text(pod: PodRequest, namespace: str, rules: Mapping[str, Rules], quotas: QuotaBook) -> str:
    """Which quota the pod exceeds on any node, and by how much; empty if it may fit."""
    for key in pod.vendors:
        vendor = rules[key]
        room = quotas.room(namespace, vendor)
        least, _ = bounds(pod, key)
        asked = (
            (vendor.quota_memory, least.memory, room.memory, " MiB"),
            (vendor.quota_cores, least.cores, room.cores, ""),
        )
        if least.memory or least.cores:
            for resource, amount, left, unit in asked:
                if left is not None and amount > left:
                    return (
                        f"asks for {amount}{unit} of {resource}, but {QUOTA_PREFIX}{resource} of namespace {namespace}"
                        f" leaves {max(left, 0)}{unit}: {amount - max(left, 0)}{unit} too much"
                    )
    return ""


def refuse_for_quota(rules: Rules, ask: Ask, cards_paid: int) -> Misfit:
    """The misfit of a node that a short quota forbids: cards that could not be used anyway keep their own reason."""
    refused: list[CardMisfit] = []
    taken = 0
    for card in ask.cards:
        misfit = refuse_identity(rules, ask, card) or refuse_sharing(rules, ask, card)
        if misfit is None and cards_paid > 0:
            misfit = refuse_capacity(rules, ask, card)
            if misfit is None and taken < cards_paid:
                taken += 1
                continue
        refused.append(
            misfit
            or CardMisfit(
                card.device.uuid,
                Reason.QUOTA_NOT_FIT,
                asked=ask.request.memory_on(card.device.memory),
                free=ask.room.memory,
            )
        )
    return cards_misfit(refused, total=len(ask.cards), vendor=rules.key, taken=taken, container=ask.container)


def first_shortage(pod: PodRequest, rooms: Mapping[str, QuotaRoom]) -> tuple[Request, int, int] | None:
    """The first vendor whose quota no placement could satisfy: (request, container, cards it pays for)."""
    for vendor in pod.vendors:
        short = shortage(pod, vendor, rooms[vendor]) if vendor in rooms else None
        if short is not None:
            container, cards_paid = short
            request = next(r for r in pod.containers[container].requests if r.vendor == vendor)
            return request, container, cards_paid
    return None


def rooms_that_may_refuse(
    pod: PodRequest, rooms: Mapping[str, QuotaRoom], arrays: CardArrays, rules: Mapping[str, Rules]
) -> dict[str, QuotaRoom]:
    """The quotas that could still refuse some placement."""
    found = {}
    for vendor, room in rooms.items():
        _, most = bounds(
            pod,
            vendor,
            largest_card=arrays.largest_card.get(vendor, 0),
            mig=vendor in arrays.mig_vendors,
            exact=rules[vendor].arrays_exact,
        )
        if not room.allows(most.memory, most.cores):
            found[vendor] = room
    return found
