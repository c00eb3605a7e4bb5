"""ResourceClaims of the driver `gpu.tessera.io` in the words of the core, and back."""

from __future__ import annotations

from tessera.vendors.claims.allocations import allocation, claim_facts
from tessera.vendors.claims.asks import BadClaim, ClaimAsk, claim_grants, is_our_class, read_claim, with_claims
from tessera.vendors.claims.pools import PoolDevice, PoolDevices, pool_devices, with_published

__all__ = [
    "BadClaim",
    "ClaimAsk",
    "PoolDevice",
    "PoolDevices",
    "allocation",
    "claim_facts",
    "claim_grants",
    "is_our_class",
    "pool_devices",
    "read_claim",
    "with_claims",
    "with_published",
]
