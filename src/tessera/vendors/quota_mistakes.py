"""Finds quotas that limit nothing, though they name our resources: wrong prefixes, wrong names, and wrong units.

`doctor` looks at all quotas; the webhook tells who creates a pod about those of its namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tessera.core.quota import QUOTA_PREFIX
from tessera.vendors.base import Vendor
from tessera.vendors.mistakes import vocabulary
from tessera.vendors.node_reader import quota_limit
from tessera.wire.objects import QuantityText

FAR_ABOVE = 100
"""times what the whole cluster has: a quota for a cluster that is meant to grow may well be above it"""

Capacity = Callable[[Vendor], tuple[int, int]]
"""MiB and cores of all cards of a vendor; 0 if it has none"""


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
