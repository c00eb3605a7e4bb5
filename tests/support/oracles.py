"""Oracles of the core, from definitions: what selection, a policy and defragmentation must say.

Selection is `fit_pod` on each node in turn; room on a node costs what the forecast says; the fewest moves that empty so
many cards are found by trying every order of moves on plain numbers, for parts of cards and for instances of MIG.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.demand_forecast import GRAIN, DemandForecast
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit, Reason, node_misfit
from tessera.core.model.node_info import NodeInfo, node_score
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.policies.fragmentation.growth import EMPTY
from tessera.core.search.selection import Candidates, Refused, Selected, Selector


def decide_plainly(ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> tuple[Placement | None, dict[str, Misfit]]:
    """What selection must return, by the plain rule on each node in turn."""
    rooms = ledger.rooms(pod.namespace, pod.vendors)
    misfits: dict[str, Misfit] = {}
    fits: list[tuple[float, str, Placement]] = []
    for name in names:
        node = ledger.node(name)
        answer = fit_pod(node, pod, ledger.rules, rooms) if node else node_misfit(Reason.NODE_UNREGISTERED)
        if isinstance(answer, Misfit) or node is None:
            assert isinstance(answer, Misfit)
            misfits[name] = answer
            continue
        parts = sum(ledger.rules[v].node_score(node, pod, grants) for v, grants in answer.grants.items())
        score = node_score(node.cards) + parts
        fits.append((-score if pod.node_policy == "spread" else score, name, answer._replace(score=score)))
    best = min(fits, key=lambda fit: (-fit[0], fit[1]), default=None)
    return best[2] if best else None, misfits


def shown(misfit: Misfit) -> tuple[Any, ...]:
    """The visible parts of a misfit."""
    return misfit.text, misfit.counts, misfit.container, misfit.total, misfit.vendor


def indexes(placement: Placement) -> list[int]:
    """Grants compare without the index, which some vendors hand to the runtime."""
    return [grant.index for held in placement.grants.values() for grants in held for grant in grants]


def select_and_check(selector: Selector, pod: PodRequest, candidates: Candidates) -> Selected | Refused:
    """The result of selection, which must equal that of the plain rule in everything that a caller can see."""
    answer = selector.select(pod, candidates)
    check_decision(answer, selector.ledger, pod, candidates.names)
    return answer


def check_decision(answer: Selected | Refused, ledger: Ledger, pod: PodRequest, names: Sequence[str]) -> None:
    """Compares a result with the plain rule, which gets what the product gets: the ledger, the pod and the names."""
    placement, misfits = decide_plainly(ledger, pod, names)
    if isinstance(answer, Selected):
        assert placement is not None
        assert answer.placement == placement
        assert indexes(answer.placement) == indexes(placement)
        assert answer.fits[-1] == (placement.node, placement.score)
    else:
        assert placement is None
        assert {name: shown(m) for name, m in answer.misfits.items()} == {n: shown(m) for n, m in misfits.items()}


def plain_emptiness(view: NodeInfo, host: HostRequest | None, forecast: DemandForecast) -> float:
    """Before the pod comes."""
    room = sum(
        forecast.worth(
            card.free_memory * GRAIN // card.device.memory, max(card.free_cores, 0) * GRAIN // card.device.cores
        )
        for card in view.cards
        if card.device.healthy and not card.cordoned
    )
    if host is not None and forecast.loads:
        weights = [load.weight for load in forecast.loads]
        cpu = fmean([load.cpu for load in forecast.loads], weights)
        memory = fmean([load.memory for load in forecast.loads], weights)
        room += forecast.host_need**2 * min(host.cpu / cpu, host.memory / memory)
    return EMPTY * forecast.turnover * room


Stack = tuple[str, frozenset[int]]
"""a card's model, and the pods on it"""
Stacks = frozenset[Stack]
"""all cards with pods: no pod is on two cards, so no two are equal"""
State = tuple[frozenset[int], Stacks]
"""pods that have moved, and where all are"""


class PackedPod(NamedTuple):
    size: int
    model: str = ""
    """the only model that it accepts; empty: any"""
    is_fixed: bool = False


def fewest_moves(
    pods: list[PackedPod], cards: list[tuple[str, frozenset[int]]], *, capacity: int, idle: dict[str, int]
) -> list[int]:
    """At place g: the fewest moves after which g more cards are empty; as long as the largest gain that is possible."""
    first: Stacks = frozenset(cards)
    start: State = (frozenset(), first)
    seen = {start}
    best = [0]
    queue = deque([start])
    while queue:
        moved, stacks = queue.popleft()
        if len(first) - len(stacks) >= len(best):
            best.append(len(moved))
        for after in _neighbours((moved, stacks), pods, capacity, idle, first):
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return best


def _neighbours(
    state: State, pods: list[PackedPod], capacity: int, idle: dict[str, int], first: Stacks
) -> Iterator[State]:
    moved, stacks = state
    room = {stack: capacity - sum(pods[pod].size for pod in stack[1]) for stack in stacks}
    for source in stacks:
        model, members = source
        for pod in members:
            size, wanted, is_fixed = pods[pod]
            if is_fixed or pod in moved:
                continue
            left = members - {pod}
            rest = stacks - {source} | ({(model, left)} if left else frozenset())
            for target in stacks:
                if target != source and room[target] >= size and wanted in ("", target[0]):
                    yield moved | {pod}, rest - {target} | {(target[0], target[1] | {pod})}
            for other in idle if left else ():
                used = sum(stack[0] == other for stack in stacks) - sum(stack[0] == other for stack in first)
                if wanted in ("", other) and idle[other] > used:
                    yield moved | {pod}, rest | {(other, frozenset({pod}))}


Instances = frozenset[tuple[int, int]]
"""of one card: pods, and the slice at which the instance of each begins"""
InstanceState = tuple[frozenset[int], tuple[Instances, ...]]
"""pods that have moved, and all cards"""


class PlacedInstance(NamedTuple):
    size: int
    """memory slices"""
    is_fixed: bool = False


def fewest_instance_moves(
    pods: Sequence[PlacedInstance], cards: Sequence[Instances], *, starts: Mapping[int, Sequence[int]]
) -> list[int]:
    """At place g: the fewest moves after which g more cards are empty; as long as the largest gain that is possible.

    `starts`: by size, where an instance may begin."""
    start: InstanceState = (frozenset(), _ordered(cards))
    seen, queue, best = {start}, deque([start]), [0]
    empty = sum(not card for card in cards)
    while queue:
        state = queue.popleft()
        if sum(not card for card in state[1]) - empty >= len(best):
            best.append(len(state[0]))
        for after in _instance_neighbours(state, pods, starts):
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return best


def _instance_neighbours(
    state: InstanceState, pods: Sequence[PlacedInstance], starts: Mapping[int, Sequence[int]]
) -> Iterator[InstanceState]:
    moved, cards = state
    for source, card in enumerate(cards):
        for pod, begin in card:
            if pod in moved or pods[pod].is_fixed:
                continue
            for target, other in enumerate(cards):
                for place in _free(other, pods, pods[pod].size, starts):
                    after = list(cards)
                    after[target] = other | {(pod, place)}
                    after[source] = after[source] - {(pod, begin)}
                    yield moved | {pod}, _ordered(after)


def _free(
    card: Instances, pods: Sequence[PlacedInstance], size: int, starts: Mapping[int, Sequence[int]]
) -> Iterator[int]:
    taken = {begin + offset for pod, begin in card for offset in range(pods[pod].size)}
    return (begin for begin in starts[size] if taken.isdisjoint(range(begin, begin + size)))


def _ordered(cards: Sequence[Instances]) -> tuple[Instances, ...]:
    """Cards are alike, so their order says nothing."""
    return tuple(sorted(cards, key=sorted))
