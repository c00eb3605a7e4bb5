"""Slices of cards in plain values: what a placement gives to each container or claim, and what holds a card.

An allocated ResourceClaim holds its cards itself, whichever pods use it. `ClaimUsers` says which these are; where that
is not known (a journal's past), the claim is named alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.ledger.holders import HolderKind, kind_of
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.grants import Placement
from tessera.core.model.requests import claim_and_request
from tessera.scheduler.engine_view import ClaimUsers
from tessera.wire.resource_api import Consumer


@dataclass(frozen=True, slots=True)
class GrantedSlice:
    """The part of one card that one container gets, or one claim."""

    container: str
    """empty if a claim gets it"""
    vendor: str
    card: str
    index: int
    model: str
    memory_mib: int
    cores: int
    mig: str = ""
    claim: str = ""
    request: str = ""
    """of the claim; empty if that is not known"""

    @property
    def title(self) -> str:
        return holder_title(self.container, self.claim, self.request)


def holder_title(container: str, claim: str, request: str) -> str:
    if not claim:
        return f"container {container}"
    return f"claim {claim}, request {request}" if request else f"claim {claim}"


@dataclass(frozen=True, slots=True)
class CardHolder:
    """A pod that holds part of a card, or a claim with the pods that use it."""

    namespace: str
    name: str
    """of the pod; of the first one if several use a claim, and of the claim if none does"""
    slots: int
    memory_mib: int
    cores: int
    state: str
    claim: str = ""
    """the ResourceClaim that holds it; empty if the pod itself does"""
    pods: tuple[str, ...] = ()
    """those that the claim is reserved for"""

    @property
    def label(self) -> str:
        """Which pods, with the claim."""
        if not self.claim:
            return f"{self.namespace}/{self.name}"
        return f"{self.namespace}/{'+'.join(self.pods)}[{self.claim}]"

    @property
    def text(self) -> str:
        amounts = [f"{self.memory_mib} MiB"] if self.memory_mib else []
        amounts += [f"{self.cores} cores"] if self.cores else []
        return f"{self.label} ({', '.join(amounts) or f'{self.slots} slots'})"


def sorted_users(users_of: ClaimUsers | None, facts: PodFacts) -> list[Consumer]:
    """The pods that a claim is reserved for, by name, as far as they are known."""
    return sorted((users_of(facts) if users_of is not None else None) or (), key=lambda each: each.name)


def user_names(users_of: ClaimUsers | None, facts: PodFacts) -> tuple[str, ...]:
    return tuple(each.name for each in sorted_users(users_of, facts))


def placement_slices(ledger: Ledger, placement: Placement, containers: Sequence[str]) -> tuple[GrantedSlice, ...]:
    """`containers`: the names of all that have a part, those of claims as `PodRequest` has them."""
    view = ledger.node(placement.node)
    devices = {card.device.uuid: card.device for card in view.cards} if view is not None else {}
    found = []
    for vendor, by_container in sorted(placement.grants.items()):
        for position, grants in enumerate(by_container):
            container = containers[position] if position < len(containers) else f"#{position}"
            claim, request = claim_and_request(container)
            for grant in grants:
                device = devices.get(grant.uuid)
                found.append(
                    GrantedSlice(
                        "" if claim else container,
                        vendor,
                        grant.uuid,
                        device.index if device else grant.index,
                        device.model if device else "",
                        grant.memory,
                        grant.cores,
                        grant.mig.profile if grant.mig else "",
                        claim,
                        request,
                    )
                )
    return tuple(found)


def holder_slices(ledger: Ledger, facts: PodFacts, containers: Sequence[str]) -> tuple[GrantedSlice, ...]:
    """What a pod or a claim holds; `containers` are the pod's own."""
    named = [f"{facts.name}:"] if kind_of(facts) is HolderKind.CLAIM else containers
    return placement_slices(ledger, Placement(facts.node, facts.grants), named)


def card_holders(ledger: Ledger, node: str, uuid: str, users_of: ClaimUsers | None = None) -> tuple[CardHolder, ...]:
    """The pods and claims that hold a card, the largest first."""
    return tuple(holder for holder, _ in holders_with_pods(ledger, node, uuid, users_of))


def holders_with_pods(
    ledger: Ledger, node: str, uuid: str, users_of: ClaimUsers | None
) -> list[tuple[CardHolder, tuple[str, ...]]]:
    """The same, each with the uids of the pods that use what it holds."""
    found = []
    for entry in ledger.pods_on(node):
        holding = entry.holdings.get(uuid)
        if holding is None:
            continue
        facts, use = entry.facts, holding.use
        claim = facts.name if kind_of(facts) is HolderKind.CLAIM else ""
        users = sorted_users(users_of, facts) if claim else []
        name = users[0].name if users else facts.name
        amounts = (use.slots, use.memory, use.cores)
        pods = tuple(each.name for each in users)
        holder = CardHolder(facts.namespace, name, *amounts, entry.state.value, claim, pods)
        found.append((holder, tuple(each.uid for each in users) if claim else (facts.uid,)))
    return sorted(found, key=lambda one: (-one[0].memory_mib, one[0].namespace, one[0].name, one[0].claim))
