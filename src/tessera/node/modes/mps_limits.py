"""What an MPS client may use at most, and the ceiling of a card: the largest limits among the claims on it.

A container's variables say its own limits. A process that drops them gets the daemon's, so the daemon's are the card's
ceiling: as low as the largest grant allows, never lower, because a client cannot raise what the daemon says. It goes
up before the first client of a larger grant can come (the defaults for later servers, and every running server for
later clients; running clients keep theirs), and comes down only while the card has no client. Every process of a
container is a client of its own: the limits count for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import CardFacts

ALL_CORES = 100
"""percent"""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one client. Both are positive: zero or nothing would mean no limit at all to CUDA."""

    memory_mib: int
    cores: int
    """percent of the card's multiprocessors, 1 to 100"""

    def covers(self, other: Limits) -> bool:
        return self.memory_mib >= other.memory_mib and self.cores >= other.cores

    def joined(self, other: Limits) -> Limits:
        """The lowest that covers both."""
        return Limits(max(self.memory_mib, other.memory_mib), max(self.cores, other.cores))


def largest(every: Iterable[Limits]) -> Limits | None:
    """The lowest that covers all; None where there are none."""
    found: Limits | None = None
    for each in every:
        found = each if found is None else found.joined(each)
    return found


def limits_on(claim: Claim, card: CardFacts, *, limit_cores: bool = True) -> Limits | None:
    """What one process of the container may use of the card; None where the claim has nothing there that can be kept.

    More memory than the card has (scaled or nonsense) is all of it.
    """
    slices = [each for each in claim.slices if each.uuid == card.uuid]
    memory = sum(each.memory for each in slices)
    if memory <= 0:
        return None
    if card.memory_bytes is not None:
        memory = min(memory, max(1, card.memory_bytes // MIB))
    # A slice without a share of the cores may use all of them.
    shares = [each.cores if limit_cores and 0 < each.cores < ALL_CORES else ALL_CORES for each in slices]
    return Limits(memory, min(sum(shares), ALL_CORES))
