"""Nominations: what pods are to get while their victims still hold it.

A nomination is a pod's placement *over* named victims. It takes what is free together with what the victims hold, so
for a while a card is granted twice on paper, but never in fact. Of each nomination a card counts the larger part, per
amount: what it takes, or what its victims still hold. So whichever nominations come to nothing, and whichever victims
stay, no other pod has what is nominated; and what fits beside it goes in.

A nomination that relies on victims of an earlier one names them too. Each victim is counted once, with the first
nomination, by uid, that names it. Nominations live in this process only. They end when the pod is placed or gone, when
they are withdrawn, and by their deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from tessera.core.fit.quota import demand
from tessera.core.ledger.holders import Holder
from tessera.core.ledger.holdings import Holding, PodFacts
from tessera.core.model.grants import NO_USE, Use
from tessera.core.model.node_info import Card, Tenant


class Share(NamedTuple):
    """A part of one card, and the pod whose it is."""

    tenant: Tenant
    holding: Holding


class Part(NamedTuple):
    """Of one card, what belongs to one nomination."""

    held: Sequence[Share]
    """by its victims"""
    nominated: Sequence[Share]


def counted(card: Card, shares: Iterable[Share], *, core_masks: bool) -> Card:
    """The card as it is with these shares alone. Why its use is not known exactly stays: unknown is never free."""
    shares = list(shares)
    use = _sum(shares)
    if core_masks:
        use = use._replace(cores=reduce(or_, (share.holding.use.cores for share in shares), 0))
    return Card(
        card.device,
        *use,
        tuple(slot for share in shares for slot in share.holding.mig),
        card.cordoned,
        card.held,
        tuple(share.tenant for share in shares),
    )


def with_nominations(card: Card, staying: Sequence[Share], parts: Sequence[Part], *, core_masks: bool) -> Card:
    """The card with pods that stay, and the larger part of each nomination."""
    shares = [*staying, *(share for part in parts for share in (*part.held, *part.nominated))]
    whole = counted(card, shares, core_masks=core_masks)
    use = _sum(staying)
    for part in parts:
        use = use.plus(_sum(part.held).peak(_sum(part.nominated)))
    whole.used, whole.used_memory = use.slots, use.memory
    if not core_masks:
        whole.used_cores = use.cores
    return whole


def _sum(shares: Iterable[Share]) -> Use:
    return reduce(Use.plus, (share.holding.use for share in shares), NO_USE)


def quota_use(pods: Iterable[PodFacts], namespace: str, vendor: str) -> Use:
    """What these pods count against the quotas of a namespace."""
    counts = (
        demand(facts.spans, enumerate(facts.grants[vendor]))
        for facts in pods
        if facts.namespace == namespace and vendor in facts.grants
    )
    return reduce(Use.plus, counts, NO_USE)


class NominationBook(dict[str, Holder]):
    """All nominations, by pod. Changed by the ledger only."""

    def __init__(self) -> None:
        super().__init__()
        self._by_node: dict[str, dict[str, Holder]] = {}

    def all(self) -> list[Holder]:
        """Sorted by uid."""
        return [self[uid] for uid in sorted(self)]

    def on_node(self, name: str, *, without: str = "") -> list[Holder]:
        """Those on a node, sorted by uid, without that of one pod."""
        of_node = self._by_node.get(name)
        return [of_node[uid] for uid in sorted(of_node) if uid != without] if of_node else []

    def others(self, uid: str) -> list[Holder]:
        """All but that of one pod, sorted by uid."""
        return [nomination for nomination in self.all() if nomination.facts.uid != uid]

    def victims_on(self, name: str, *, without: str = "") -> frozenset[str]:
        return frozenset().union(*(nomination.victims for nomination in self.on_node(name, without=without)))

    def put(self, nomination: Holder) -> None:
        uid = nomination.facts.uid
        self[uid] = nomination
        self._by_node.setdefault(nomination.facts.node, {})[uid] = nomination

    def take_away(self, uid: str) -> Holder:
        nomination = self.pop(uid)
        of_node = self._by_node[nomination.facts.node]
        del of_node[uid]
        if not of_node:
            del self._by_node[nomination.facts.node]
        return nomination


def shares_of(uuid: str, pods: Iterable[tuple[PodFacts, Mapping[str, Holding]]]) -> list[Share]:
    """The parts of one card that these pods have."""
    found = []
    for facts, holdings in pods:
        holding = holdings.get(uuid)
        if holding is not None:
            found.append(Share(facts.tenant(holding.vendor), holding))
    return found
