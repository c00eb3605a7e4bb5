"""What a gang needs that does not fit, and on which nodes it costs least to make room for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from tessera.core.arrays import CardArrays, Ints
from tessera.core.gang_trial import Domains, GangMember, Placed
from tessera.core.preemption import Preemption
from tessera.core.selection import Candidates
from tessera.core.victims import Cost

SPARE_NODES = 64
"""beside one per member that are looked at for members of one kind, the cheapest first"""
ROOMY_NODES = 16
"""with free memory that are looked at too"""
MAX_DOMAINS = 8
"""that are searched alone, those with the most of the cheapest nodes"""


@dataclass(frozen=True, slots=True)
class GangDemand:
    """A gang that does not fit."""

    members: Sequence[GangMember]
    required: int
    """of the members that must be placed together"""
    priority: int
    """pods of lower priority may leave"""
    free: frozenset[str] = frozenset()
    """uids of what is held for the gang itself"""
    fitting: tuple[Placed, ...] = ()
    """places that are free as it is; only their nodes count"""
    domains: Domains | None = None


def cheapest_nodes(preemption: Preemption, demand: GangDemand, member: GangMember) -> list[tuple[Cost, str]]:
    """Nodes for members of one kind, with a bound of their cost."""
    selector, arrays = preemption.selector, preemption.ledger.arrays
    candidates = member.candidates
    if candidates is None or candidates.order is not arrays.order:
        names = preemption.ledger.node_names() if candidates is None else candidates.names
        candidates = selector.candidates(names)
    named, most = frozenset(candidates.names), len(demand.members) + SPARE_NODES
    found = {place.placement.node: Cost() for place in demand.fitting if place.placement.node in named}
    found.update((name, Cost()) for name in _roomiest(arrays, candidates.rows))
    for bound in islice(preemption.arrays.bounds(member.request, demand.priority, candidates.rows), most):
        found.setdefault(bound.node, bound.cost)
    return [(cost, name) for name, cost in found.items()]


def _roomiest(arrays: CardArrays, rows: Ints) -> list[str]:
    """The nodes with the most free memory: members may be moved there, so that a pod can stay."""
    free = np.maximum(arrays.memory[:, rows] - arrays.used_memory[:, rows], 0).sum(axis=0)
    best = np.argsort(-free, kind="stable")[:ROOMY_NODES].tolist()
    return [arrays.names[rows[i]] for i in best if free[i] > 0]


def promising_domains(preemption: Preemption, demand: GangDemand) -> list[str]:
    """Those with the most of the cheapest nodes first."""
    assert demand.domains is not None
    by_node, counts = demand.domains.by_node, Counter[str]()
    for member in {member.kind: member for member in demand.members}.values():
        counts.update(by_node[name] for _, name in cheapest_nodes(preemption, demand, member) if name in by_node)
    return sorted(counts, key=lambda domain: (-counts[domain], domain))[:MAX_DOMAINS]


def within_domains(preemption: Preemption, demand: GangDemand, chosen: frozenset[str]) -> GangDemand:
    """The same for the nodes of these domains alone."""
    assert demand.domains is not None
    by_node, selector = demand.domains.by_node, preemption.selector
    narrowed: dict[Hashable, Candidates] = {}
    for member in demand.members:
        if member.kind not in narrowed:
            names = preemption.ledger.node_names() if member.candidates is None else member.candidates.names
            narrowed[member.kind] = selector.candidates([name for name in names if by_node.get(name) in chosen])
    return replace(demand, members=[GangMember(one.request, narrowed[one.kind]) for one in demand.members])
