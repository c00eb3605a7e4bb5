"""Cards of a small node, with UUIDs that look like real ones."""

from __future__ import annotations

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import CardFacts, GpuInstanceProfile
from tessera.node.fleet import CardState, Fleet


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-207a-2038-9b45-23cac89cb67a"


def card(number: int, *, numa: int | None = None, problem: str = "", instances: int = 0) -> CardState:
    """`instances`: the most MIG instances it can have; 0 = no MIG."""
    offer = GpuInstanceProfile("1g.18gb", 19, 1, 18_432, 16, instances, (MigPlacement(0, 1),))
    offers = (offer,) if instances else ()
    return CardState(CardFacts(uuid(number), number, "NVIDIA H200", numa=numa, mig_profiles=offers), problem)


def fleet(count: int = 2, *, sick: frozenset[int] | set[int] = frozenset()) -> Fleet:
    """`count` cards; those with numbers in `sick` are unhealthy."""
    return Fleet(tuple(card(number, problem="xid 79" if number in sick else "") for number in range(count)))
