"""Claims in the ledger: decided by the plain rule, never more than there is, and the same after a replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.ledger.audit import audit
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, replay
from tessera.core.model.devices import MIG, NodeFacts
from tessera.core.model.grants import Placement, spans_of
from tessera.core.model.requests import Constraint, ContainerRequest, PodRequest, Request, Role
from tessera.core.search.selection import Selected, Selector
from tessera.vendors.claims.allocations import allocation, claim_facts
from tessera.vendors.claims.asks import claim_grants, with_claims
from tessera.vendors.drafts import BadPod
from tessera.wire.resource_api import Allocation, ResourceClaim
from tests.support import strategies as some
from tests.support.claims import allocated, ask, attribute, claim, exactly, pool_of, publish
from tests.support.oracles import select_and_check
from tests.support.strategies import examples

POOL = ("NVIDIA", "Biren")
SELECTORS = (
    f"{attribute('model')}.contains('A100')",
    f"{attribute('model')} == 'Tesla T4'",
    f"{attribute('index')} in [0, 2]",
    f"{attribute('numaNode')} == 1",
    f"{attribute('type')} == 'mig'",
    f"{attribute('profile')} != '1g.5gb'",
    f"!has({attribute('profile')}) || {attribute('profile')}.startsWith('2g')",
    f"{attribute('uuid')}.endsWith('-1')",
    "device.capacity['gpu.tessera.io'].memory.isGreaterThan(quantity('8Gi'))",
    "device.allowMultipleAllocations",
)
CONSTRAINTS = (
    {"matchAttribute": "gpu.tessera.io/numaNode"},
    {"matchAttribute": "gpu.tessera.io/model"},
    {"distinctAttribute": "gpu.tessera.io/uuid"},
)


@st.composite
def asked(draw: st.DrawFn) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if memory := draw(st.sampled_from((0, 1024, 4096, 8192, 20000))):
        more["memory"] = f"{memory}Mi"
    if cores := draw(st.sampled_from((0, 10, 50, 100))):
        more["cores"] = str(cores)
    if draw(st.integers(0, 9)) == 0:
        more["adminAccess"] = True
    selectors = draw(st.lists(st.sampled_from(SELECTORS), max_size=2, unique=True))
    return exactly(*selectors, count=draw(st.sampled_from((1, 1, 2, 3))), **more)


@st.composite
def some_claims(draw: st.DrawFn, pod: PodRequest) -> list[ResourceClaim]:
    return [
        claim(
            f"{pod.uid}-{number}",
            *({"name": f"r{place}", "exactly": draw(asked())} for place in range(draw(st.integers(1, 2)))),
            namespace=pod.namespace,
            constraints=draw(st.lists(st.sampled_from(CONSTRAINTS), max_size=1)),
        )
        for number in range(draw(st.integers(1, 2)))
    ]


@st.composite
def published_clusters(draw: st.DrawFn) -> tuple[NodeFacts, ...]:
    """Nodes of which most cards are for claims."""
    return tuple(
        replace(
            node,
            devices=tuple(
                publish(card) if card.vendor == "NVIDIA" and draw(st.integers(0, 5)) else card for card in node.devices
            ),
        )
        for node in draw(some.clusters(POOL, least=2))
    )


@examples(1 / 3)
@given(data=st.data())
def test_pods_with_claims_are_placed_by_the_plain_rule_and_counted_once(data: st.DataObject) -> None:
    nodes = data.draw(published_clusters())
    pools = {node.name: pool_of(node) for node in nodes}
    quotas = data.draw(st.lists(some.quotas(POOL), max_size=1))
    ledger = Ledger(some.VENDORS)
    for node in nodes:
        ledger.observe_node(node)
    for quota in quotas:
        ledger.observe_quota(quota)
    selector = Selector(ledger)
    candidates = selector.candidates(some.NODES)
    shares = (f"share-{number}" for number in count())
    shown: list[PodFacts] = []
    for number in range(4):
        classic = data.draw(some.pod_requests(POOL, f"pod-{number}"))
        claims = data.draw(some_claims(classic))
        asks = [ask(each) for each in claims]
        variants = with_claims(classic, asks)
        if isinstance(variants, BadPod):
            continue
        answer = select_and_check(selector, variants[0], candidates)
        if not isinstance(answer, Selected):
            continue
        placement = answer.placement
        ledger.reserve(variants[0], placement, deadline=1)
        assert_sound(ledger)
        reserved = ledger.node(placement.node)
        assert reserved is not None
        before = [(card.used_memory, card.used_cores, len(card.mig)) for card in reserved.cards]
        given_to = claim_grants(variants[0], placement.grants)
        for each, known in zip(claims, asks, strict=True):
            written = allocation(
                known, given_to[each.metadata.name], pools[placement.node], new_share=lambda: next(shares)
            )
            assert isinstance(written, Allocation)
            facts = claim_facts(allocated(each, written), pools)
            assert facts is not None
            assert not facts.problem
            shown.append(facts)
            ledger.put_pod(facts, GrantState.BOUND, observed=True)
        rest = classic_part(classic, placement)
        shown.append(rest)
        ledger.put_pod(rest, GrantState.BOUND, observed=True)
        # The same is held whether the pod or its claims hold it.
        after = ledger.node(placement.node)
        assert after is not None
        assert [(card.used_memory, card.used_cores, len(card.mig)) for card in after.cards] == before
        assert_sound(ledger)
    assert ledger.state() == replay(some.VENDORS, nodes=nodes, pods=shown, quotas=quotas).state()


def classic_part(pod: PodRequest, placement: Placement) -> PodFacts:
    """What the pod itself holds once its claims hold theirs."""
    own = {vendor: held[: len(pod.containers)] for vendor, held in placement.grants.items()}
    return PodFacts(pod.uid, pod.namespace, pod.name, placement.node, spans_of(pod.roles), own)


def assert_sound(ledger: Ledger) -> None:
    assert list(audit(ledger)) == []


# -- a claim is placed like the same classic request


def plain_clusters() -> st.SearchStrategy[tuple[NodeFacts, ...]]:
    """Nodes whose cards are all published, none in MIG mode: those go to classic pods that name the mode only."""

    def publish_all(nodes: tuple[NodeFacts, ...]) -> tuple[NodeFacts, ...]:
        return tuple(
            replace(node, devices=tuple(publish(card) for card in node.devices if card.mode != MIG)) for node in nodes
        )

    return some.clusters(("NVIDIA",), least=2).map(publish_all)


def both_ways(pod: PodRequest, request: Request, models: tuple[str, ...]) -> Iterator[PodRequest]:
    """The same wish as a container's and as a claim's."""
    memory = {"memory": f"{request.memory}Mi"} if request.memory else {}
    wishes = [f"{attribute('model')}.lowerAscii().contains('{model}')" for model in models]
    asks = ask(claim("c", gpu=exactly(*wishes, count=request.count, cores=str(request.cores), **memory)))
    constraints = (("NVIDIA", Constraint(use_models=models)),) if models else ()
    yield replace(pod, containers=(ContainerRequest("c", Role.APP, (request,)),), constraints=constraints)
    variants = with_claims(replace(pod, containers=(), constraints=()), [asks])
    assert not isinstance(variants, BadPod)
    yield variants[0]


@examples(1 / 3)
@given(data=st.data())
def test_a_claim_gets_what_the_same_classic_request_gets(data: st.DataObject) -> None:
    ledger = Ledger(some.VENDORS)
    for node in data.draw(plain_clusters()):
        ledger.observe_node(node)
    selector = Selector(ledger)
    candidates = selector.candidates(some.NODES)
    for number in range(5):
        drawn = data.draw(some.pod_requests(("NVIDIA",), f"pod-{number}"))
        memory = data.draw(st.sampled_from((0, 1024, 4096, 8192)))
        amounts = memory, 0 if memory else 100, data.draw(st.sampled_from((0, 10, 50, 100)))
        request = Request("NVIDIA", data.draw(st.integers(1, 2)), *amounts)
        models = data.draw(st.sampled_from(((), ("a100",), ("t4",))))
        classic, claimed = (selector.select(pod, candidates) for pod in both_ways(drawn, request, models))
        assert isinstance(classic, Selected) is isinstance(claimed, Selected)
        if isinstance(classic, Selected) and isinstance(claimed, Selected):
            assert claimed.placement == classic.placement
            pod = next(both_ways(drawn, request, models))
            ledger.reserve(pod, classic.placement, deadline=1)


def test_both_ways_are_different_requests() -> None:
    """Else the comparison above would prove nothing."""
    pod = PodRequest("u", "n", "p", ())
    classic, claimed = both_ways(pod, Request("NVIDIA", 1, 1024, 0, 10), ("a100",))
    assert classic.shape != claimed.shape
    assert claimed.containers[0].role is Role.CLAIM
