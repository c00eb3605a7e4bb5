"""Nearest is near: the answer from the arrays against a search of every card in plain fractions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from tessera.core.fit.card_checks import refuse_identity
from tessera.core.fit.card_rules.amounts import SLOTS
from tessera.core.fit.fit import make_ask
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import HAMI_CORE
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import Constraint, ContainerRequest, PodRequest, Request
from tessera.core.policies import device_policy
from tessera.core.search.near_misses import FewCards, NearMiss, near_miss
from tessera.core.search.selection import Refused, Selected, Selector
from tests.support import strategies as some

Distance = tuple[Fraction, Fraction]
"""the largest share that is lacking, and the sum of all"""


def lacking(request: Request, card: Card, *, alone: bool) -> Iterator[Fraction]:
    """The shares of what is asked that one card lacks, each found by trying smaller and smaller amounts."""
    device = card.device
    memory = request.memory if request.memory else device.memory * request.percent // 100
    if memory > card.free_memory:
        yield Fraction(memory - card.free_memory, memory)
    is_whole = device.cores > 0 and request.cores >= min(100, device.cores)
    cores = device.cores if is_whole else request.cores
    if cores > card.free_cores:
        yield Fraction(cores - card.free_cores, cores)
    if cores == 0 and device.cores > 0 and card.free_cores <= 0:
        yield Fraction(1)
    if card.used and (alone or is_whole):
        yield Fraction(min(card.used, device.slots), device.slots)
    elif card.used >= device.slots:
        yield Fraction(1)


def distances(ledger: Ledger, node: NodeInfo, pod: PodRequest, request: Request) -> dict[str, Distance]:
    """By uuid, of the cards that can be had."""
    rules = ledger.rules[request.vendor]
    ask = make_ask(node, pod, request, node.cards, container=0)
    alone = device_policy(pod.device_policy).unused_cards_only
    found = {}
    for card in node.of_vendor(request.vendor):
        device = card.device
        cannot = (request.memory_on(device.memory) and not device.memory) or (request.cores and not device.cores)
        if refuse_identity(rules, ask, card) is None and not cannot:
            shares = list(lacking(request, card, alone=alone))
            found[device.uuid] = (max(shares, default=Fraction(0)), sum(shares, Fraction(0)))
    return found


def node_distance(of_cards: dict[str, Distance], count: int) -> tuple[Fraction, Fraction] | None:
    """The smaller of two changes: as many amounts less as the last card needs, or as many cards less as are missing."""
    ordered = sorted(of_cards.values())
    takes = sum(worst == 0 for worst, _ in ordered)
    changes = []
    if takes:
        fewer = Fraction(count - takes, count)
        changes.append((fewer, fewer))
    if len(ordered) >= count:
        changes.insert(0, ordered[count - 1])
    return min(changes, key=lambda change: change[0], default=None)


@st.composite
def refused_pods(draw: st.DrawFn) -> tuple[Ledger, PodRequest, Request]:
    """A pod with one request that no node takes, on a cluster without MIG and with cards in use."""
    ledger = Ledger(some.VENDORS)
    for node in draw(some.clusters(("NVIDIA",))):
        devices = tuple(replace(device, mode=HAMI_CORE, mig_profiles=()) for device in node.devices)
        ledger.observe_node(replace(node, devices=devices))
    selector = Selector(ledger)
    for i, request in enumerate(draw(st.lists(requests(), max_size=12))):
        placed = pod_of(f"placed-{i}", replace(request, count=1))
        answer = selector.select(placed, some.NODES)
        if isinstance(answer, Selected):
            ledger.reserve(placed, answer.placement, deadline=1)
    request = draw(requests())
    pod = replace(
        pod_of("refused", request),
        device_policy=draw(st.sampled_from(("spread", "binpack", "mutex"))),
        constraints=draw(st.sampled_from(((), (), (("NVIDIA", Constraint(use_models=("t4",))),)))),
    )
    assume(isinstance(selector.select(pod, some.NODES), Refused))
    return ledger, pod, request


def requests() -> st.SearchStrategy[Request]:
    """Mostly of whole numbers that leave something over, so that what is short differs from card to card."""
    memory = st.sampled_from([(1500, 0), (4097, 0), (8000, 0), (16000, 0), (40000, 0), (0, 33), (0, 75), (0, 100)])
    cores = st.sampled_from((0, 0, 10, 30, 50, 100))
    counts = st.sampled_from((1, 1, 2, 3))
    return st.builds(
        lambda count, memory, cores: Request("NVIDIA", count, memory[0], memory[1], cores), counts, memory, cores
    )


def pod_of(uid: str, request: Request) -> PodRequest:
    return PodRequest(uid, "team-a", uid, (ContainerRequest("main", requests=(request,)),))


@given(drawn=refused_pods())
def test_no_node_and_no_card_is_nearer_than_the_nearest(drawn: tuple[Ledger, PodRequest, Request]) -> None:
    ledger, pod, request = drawn
    found = near_miss(ledger, pod, Selector(ledger).candidates(some.NODES).rows)

    nodes = [node for name in sorted(some.NODES) if (node := ledger.node(name)) is not None and not node.facts.problem]
    by_node = {node.name: distances(ledger, node, pod, request) for node in nodes}
    ranked = [
        (distance, name)
        for name, of_cards in by_node.items()
        if (distance := node_distance(of_cards, request.count)) is not None
    ]
    if not ranked:
        assert found is None
        return
    (share, _), name = min(ranked)
    assert found is not None
    assert found.node == name
    of_cards = by_node[name]
    if isinstance(found, FewCards):
        assert found.found == sum(worst == 0 for worst, _ in of_cards.values())
        assert share == Fraction(request.count - found.found, request.count)
    else:
        assert of_cards[found.uuid][0] == share
        assert max(short.share for short in found.shortages) == float(share)
        assert found.found == sum(worst == 0 for worst, _ in of_cards.values())


@given(drawn=refused_pods())
def test_the_pod_fits_when_it_asks_for_no_more_than_the_nearest_card_has(
    drawn: tuple[Ledger, PodRequest, Request],
) -> None:
    ledger, pod, request = drawn
    selector = Selector(ledger)
    found = near_miss(ledger, pod, selector.candidates(some.NODES).rows)
    if not isinstance(found, NearMiss) or any(short.unit == SLOTS or short.free <= 0 for short in found.shortages):
        return  # It is not a smaller amount that would help.
    free = {short.unit: short.free for short in found.shortages}
    memory = min(request.memory or free.get("MiB", 0), free.get("MiB", request.memory))
    smaller = replace(
        request,
        memory=memory,
        percent=0 if memory else request.percent,
        cores=min(request.cores, free.get("cores", request.cores)),
    )
    altered = replace(pod, containers=pod_of("", smaller).containers)
    assert isinstance(selector.select(altered, [found.node]), Selected)
