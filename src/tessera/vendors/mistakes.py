"""Finds honest mistakes in pods and quotas: misspelt names, values that mean nothing, amounts that cannot be meant.

The known words are those that vendors declare (`ResourceNames`, `AnnotationKeys`) and that `pod_reader` reads for all
of them; there is no list here. The webhook refuses or warns, and `explain` says the same of pods that did not pass it.
What a pod can cost is bounded: only its first `MAX_UNKNOWN` unknown names are compared with known ones.

A quota limits nothing, though it names our resources, with a wrong prefix, name or unit. `doctor` looks at all quotas;
the webhook tells who creates a pod about those of its namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from tessera.core.fit.quota import QUOTA_PREFIX
from tessera.vendors import spelling
from tessera.vendors.annotation_values import Choice
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import Resources
from tessera.vendors.node_reader import quota_limit
from tessera.vendors.pod_reader import POD_ANNOTATIONS, POD_CHOICES
from tessera.wire.errors import shortened
from tessera.wire.objects import Pod, QuantityText

MAX_NAMES = 2048
"""resources of a pod that are looked at, and annotations; an apiserver accepts tens of thousands"""
MAX_UNKNOWN = 32
"""of these, unknown ones under our prefixes that are compared with known names"""
MAX_AMOUNTS = 64
"""pairs of a container and a vendor that it names whose amounts are looked at; a pod with more requests than
`MAX_REQUESTS` is refused anyway"""
GENERAL_PREFIX = "hami.io/"
"""of annotations that belong to no vendor; makers' annotations are sought under it, and it under theirs"""

FAR_ABOVE = 100
"""times what the whole cluster has: a quota for a cluster that is meant to grow may well be above it"""

Capacity = Callable[[Vendor], tuple[int, int]]
"""MiB and cores of all cards of a vendor; 0 if it has none"""


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something in a pod that is probably not what its author means."""

    text: str
    is_refused: bool = False
    """it can never be honoured, so the webhook refuses the pod; other mistakes have no effect"""


class Names:
    """The names of one kind that pods may write."""

    def __init__(self, known: Iterable[str], advised: Iterable[str]) -> None:
        self._known = frozenset(known)
        self._advised: dict[str, list[str]] = {}
        """by prefix; names that only Tessera writes are known, but not advised"""
        self._by_name: dict[str, list[str]] = {}
        """the same by what follows the prefix"""
        for full in sorted(set(advised)):
            prefix, slash, name = full.partition("/")
            self._advised.setdefault(prefix + slash, []).append(name)
            self._by_name.setdefault(name, []).append(full)
        self._prefixes = tuple(sorted(self._advised))

    def is_unknown(self, name: str) -> bool:
        """Whether it is not known, though it stands under one of our prefixes."""
        return name.startswith(self._prefixes) and name not in self._known

    def nearest(self, unknown: str) -> str | None:
        """The known name that was probably meant."""
        prefix, slash, name = unknown.partition("/")
        found = spelling.nearest(name, self._advised.get(prefix + slash, ()))
        if found is not None:
            return prefix + slash + found
        # The right name under the wrong one of our prefixes.
        elsewhere = self._by_name.get(name, ())
        is_ours = [full for full in elsewhere if prefix + slash == GENERAL_PREFIX or full.startswith(GENERAL_PREFIX)]
        return is_ours[0] if len(is_ours) == 1 else None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All names that mean something in a pod."""

    resources: Names
    annotations: Names


def vocabulary(vendors: Mapping[str, Vendor]) -> Vocabulary:
    return _vocabulary(tuple(vendors.values()))


@lru_cache(maxsize=2)
def _vocabulary(vendors: tuple[Vendor, ...]) -> Vocabulary:
    resources = [name for vendor in vendors for name in vendor.names.all]
    wishes = [*POD_ANNOTATIONS, *(key for vendor in vendors for key in vendor.keys.constraining if key)]
    written = (key for vendor in vendors for key in vendor.keys.written if key)
    return Vocabulary(Names(resources, resources), Names([*wishes, *written], wishes))


def find_mistakes(
    pod: Pod, vendors: Mapping[str, Vendor], *, skipped: frozenset[int] = frozenset()
) -> tuple[Mistake, ...]:
    """All mistakes of a pod: refused ones first, otherwise in the order of the pod. `skipped`: positions of containers
    that are not looked at."""
    every = (*pod.init_containers, *pod.app_containers)
    asking = [
        Asking(container.name, Resources(container.resources.limits or {}, container.resources.requests or {}))
        for position, container in enumerate(every)
        if position not in skipped and (container.resources.limits or container.resources.requests)
    ]
    named = frozenset[str]().union(*(container.names for container in asking))
    asked = [vendor for vendor in vendors.values() if not named.isdisjoint(vendor.names.all)]
    annotations = pod.annotations
    found = [
        *_amounts(asking, annotations, asked),
        *_values(annotations, asked),
        *_misspelt(asking, annotations, vocabulary(vendors)),
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda mistake: not mistake.is_refused)) if found else ()


def is_misspelt(resource: str, vendors: Mapping[str, Vendor]) -> bool:
    """Whether a resource looks like one that Tessera manages, misspelt."""
    names = vocabulary(vendors).resources
    return names.is_unknown(resource) and names.nearest(resource) is not None


@dataclass(frozen=True, slots=True)
class Asking:
    """A container that names resources."""

    container: str
    resources: Resources

    @property
    def names(self) -> Set[str]:
        """In the order of the limits, where these name all."""
        limits, requests = self.resources.limits, self.resources.requests
        return limits.keys() if not requests else {**limits, **requests}.keys()


def _amounts(asking: Iterable[Asking], annotations: Mapping[str, str], asked: Collection[Vendor]) -> Iterator[Mistake]:
    named = (
        (one, vendor)
        for one in asking
        for vendor in asked
        if any(one.resources.text(name) is not None for name in vendor.names.all)
    )
    for one, vendor in islice(named, MAX_AMOUNTS):
        bad = vendor.find_unmeant(one.resources, annotations)
        if bad is not None:
            yield Mistake(f"container {shortened(one.container)}: {bad.text}", is_refused=True)


def _values(annotations: Mapping[str, str], asked: Collection[Vendor]) -> Iterator[Mistake]:
    """Of a pod that asks for devices; the annotations mean nothing in others."""
    if not asked or not annotations:
        return
    choices: dict[str, Choice] = {choice.key: choice for choice in POD_CHOICES}
    for vendor in asked:
        choices |= {choice.key: choice for choice in vendor.choices(annotations)}
    for key, choice in choices.items():
        text = annotations.get(key)
        if text is not None and (problem := choice.find_problem(text)) is not None:
            yield Mistake(problem.text, is_refused=problem.is_refused)


def _misspelt(asking: Iterable[Asking], annotations: Mapping[str, str], words: Vocabulary) -> Iterator[Mistake]:
    named = islice(((one.container, name) for one in asking for name in one.names), MAX_NAMES)
    unknown = ((container, name) for container, name in named if words.resources.is_unknown(name))
    for container, name in islice(unknown, MAX_UNKNOWN):
        if (meant := words.resources.nearest(name)) is not None:
            where = f"container {shortened(container)}: "
            yield Mistake(f"{where}resource {shortened(name)} is unknown; did you mean {meant}?")
    keys = (key for key in islice(annotations, MAX_NAMES) if words.annotations.is_unknown(key))
    for key in islice(keys, MAX_UNKNOWN):
        if (meant := words.annotations.nearest(key)) is not None:
            yield Mistake(f"annotation {shortened(key)} is unknown and has no effect; did you mean {meant}?")


@dataclass(frozen=True, slots=True)
class QuotaMistake:
    what: str
    why: str
    fix: str


def find_quota_mistakes(
    hard: Mapping[str, QuantityText], vendors: Mapping[str, Vendor], capacity: Capacity
) -> Iterator[QuotaMistake]:
    """`hard`: what a ResourceQuota says, or the doubtful part of it."""
    owners = {name: vendor for vendor in vendors.values() for name in (vendor.quota_memory, vendor.quota_cores) if name}
    counted = {vendor.names.count for vendor in vendors.values() if vendor.names.count} - owners.keys()
    for name, text in sorted(hard.items()):
        resource = name.removeprefix(QUOTA_PREFIX)
        if name in owners:
            yield QuotaMistake(
                f"{name} limits nothing without the prefix {QUOTA_PREFIX}",
                "neither Tessera nor Kubernetes reads it: pods of the namespace get all they ask for",
                f"write {QUOTA_PREFIX}{name}: {text!r}",
            )
        elif resource in counted and name != f"requests.{resource}":
            yield QuotaMistake(
                f"{name} limits nothing",
                "Kubernetes counts devices by their requests, and Tessera limits memory and cores only",
                f"write requests.{resource}: {text!r}",
            )
        elif resource in owners:
            mistake = _check_amount(resource, text, owners[resource], capacity)
            if mistake is not None:
                yield mistake
        elif (meant := _meant(resource, vendors)) in owners:
            yield QuotaMistake(
                f"{name} limits nothing: there is no such resource",
                "pods of the namespace get all they ask for",
                f"write {QUOTA_PREFIX}{meant}: {text!r}",
            )


def _check_amount(resource: str, text: QuantityText, vendor: Vendor, capacity: Capacity) -> QuotaMistake | None:
    limit = quota_limit(text)
    memory, cores = capacity(vendor)
    total = memory // vendor.quota_factor if resource == vendor.quota_memory else cores
    has_unit = isinstance(text, str) and not text.isdecimal()
    if limit is None or not total or limit <= total * (1 if has_unit else FAR_ABOVE):
        return None
    amount, fix = f"{limit:,} per cent", "write a plain number, 100 for each card"
    if resource == vendor.quota_memory:
        unit = f"{vendor.quota_factor} MiB" if vendor.quota_factor > 1 else "MiB"
        amount = f"{limit:,} times {unit}" if vendor.quota_factor > 1 else f"{limit:,} {unit}"
        fix = f"write a plain number in units of {unit}"
        if has_unit and (meant := limit // (2**20 * vendor.quota_factor)):
            fix += f"; {text} of memory is {QUOTA_PREFIX}{resource}: {str(meant)!r}"
    return QuotaMistake(
        f"{QUOTA_PREFIX}{resource}: {text} limits nothing: it means {amount}",
        f"all cards of the cluster together have {total:,}",
        fix,
    )


def _meant(resource: str, vendors: Mapping[str, Vendor]) -> str | None:
    names = vocabulary(vendors).resources
    return names.nearest(resource) if names.is_unknown(resource) else None
