"""Annotations that only Tessera may write on pods: the record of an allocation, and what is under its own prefix.

A tenant who could write these would hold cards without a grant, or take another pod's slice. The webhook refuses them
at creation; the admission policy that guards later changes uses the same lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tessera.core.fit.card_rules import SETTINGS
from tessera.vendors.base import Vendor
from tessera.wire import keys
from tessera.wire.errors import shortened
from tessera.wire.objects import Metadata
from tessera.wire.pod_groups import GANG

RESERVED_PREFIX = "tessera.io/"
WISH_PREFIX = GANG
"""under it, but of annotations that tenants write"""
WISHES = frozenset({keys.PREEMPTIBLE, *map(keys.card_rule, SETTINGS)})
"""under it, but written by tenants"""
RESERVED_LABELS = frozenset({keys.ASSIGNED_NODE, keys.FENCE})

_BINDING = (keys.ASSIGNED_NODE, keys.ASSIGNED_TIME, keys.BIND_PHASE, keys.BIND_TIME, keys.MIG_ALLOCATIONS)

MAX_NAMED = 3
"""names per message"""


def reserved_keys(vendors: Mapping[str, Vendor]) -> frozenset[str]:
    """Annotations that are reserved besides those under `RESERVED_PREFIX`."""
    written = (key for vendor in vendors.values() for key in (vendor.keys.to_allocate, vendor.keys.allocated))
    return frozenset(key for key in (*_BINDING, *written) if key)


def reserved_on(metadata: Metadata, vendors: Mapping[str, Vendor]) -> list[str]:
    """The reserved annotations and labels of an object, as text, sorted by kind and name."""
    annotations, labels = metadata.annotations, metadata.labels
    found = [f"label {name}" for name in sorted(RESERVED_LABELS.intersection(labels))] if labels else []
    if annotations:
        known = reserved_keys(vendors)
        taken = (name for name in annotations if name in known or _is_ours(name))
        found = [*(f"annotation {name}" for name in sorted(taken)), *found]
    return found


def _is_ours(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) and not name.startswith(WISH_PREFIX) and name not in WISHES


def listed(names: Iterable[str]) -> str:
    """The first names as one text, and how many more there are."""
    every = list(names)
    shown = ", ".join(shortened(name) for name in every[:MAX_NAMED])
    return f"{shown} and {len(every) - MAX_NAMED} more" if len(every) > MAX_NAMED else shown
