"""ResourceClaims of the driver `gpu.tessera.io` in the words of the core, and back."""

from __future__ import annotations

from tessera.vendors.claims.allocations import (
    allocation,
    claim_devices_text,
    claim_facts,
    consumed_amounts,
    read_claim_devices,
    shortfalls,
    whole_amounts,
    with_parts,
)
from tessera.vendors.claims.asks import (
    BadClaim,
    ClaimAsk,
    ClaimSelectors,
    claim_grants,
    is_our_class,
    read_claim,
    selector_fault,
    selectors_excess,
    with_claims,
)
from tessera.vendors.claims.pools import PoolDevice, PoolDevices, pool_devices, with_published

__all__ = [
    "BadClaim",
    "ClaimAsk",
    "ClaimSelectors",
    "PoolDevice",
    "PoolDevices",
    "allocation",
    "claim_devices_text",
    "claim_facts",
    "claim_grants",
    "consumed_amounts",
    "is_our_class",
    "pool_devices",
    "read_claim",
    "read_claim_devices",
    "selector_fault",
    "selectors_excess",
    "shortfalls",
    "whole_amounts",
    "with_claims",
    "with_parts",
    "with_published",
]
