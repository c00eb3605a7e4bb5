"""Claims among many nodes: what is remembered of cards and of shapes decides as the plain rule does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tessera.core.fit.fit import fit_pod
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import HAMI_CORE, WHOLE, Device, NodeFacts
from tessera.core.model.grants import Grant, Placement, Span
from tessera.core.model.requests import PodRequest, Role
from tessera.core.search.preemption import Preemption
from tessera.core.search.relocation import pin
from tessera.core.search.selection import Selected, Selector
from tessera.core.search.victims import PodTraits
from tessera.vendors.claims.asks import with_claims
from tessera.vendors.drafts import BadPod
from tests.support.builders import vendors
from tests.support.claims import ask, attribute, claim, exactly, publish
from tests.support.oracles import select_and_check
from tests.support.pod_book import PlainBook

MEMORY = 16_384


def card(node: str, index: int = 0, *, numa: int = 0, mode: str = HAMI_CORE) -> Device:
    slots = 1 if mode == WHOLE else 10
    return publish(Device(f"{node}-{index}", "NVIDIA", index, slots, MEMORY, model="T4", numa=numa, mode=mode))


def ledger_of(nodes: Mapping[str, tuple[Device, ...]]) -> Ledger:
    ledger = Ledger(vendors())
    for name, cards in nodes.items():
        ledger.observe_node(NodeFacts(name, cards))
    return ledger


def claiming(asked: dict[str, Any], **more: Any) -> PodRequest:
    variants = with_claims(PodRequest("uid", "team", "p", ()), [ask(claim("c", gpu=asked, **more))])
    assert not isinstance(variants, BadPod)
    return variants[0]


def hold(ledger: Ledger, node: str, card: str, *, memory: int = 1_000, cores: int = 0) -> None:
    grants = {"NVIDIA": ((Grant(card, "NVIDIA", memory, cores),),)}
    ledger.observe_pod(PodFacts(f"on {card} {memory}", "other", "other", node, (Span(Role.APP),), grants))


@pytest.mark.parametrize(
    ("selector", "is_shared"), [(f"{attribute('uuid')} == 'n3-0'", True), (f"{attribute('index')} == 3", False)]
)
def test_cards_in_the_same_state_are_told_apart_by_what_they_publish(selector: str, is_shared: bool) -> None:
    """Also if they publish the same but for the uuid."""
    names = [f"n{number}" for number in range(24)]  # So many that three of them are few.
    indexes = {name: 0 if is_shared else number for number, name in enumerate(names)}
    ledger = ledger_of({name: (card(name, index),) for name, index in indexes.items()})
    selection = Selector(ledger)
    candidates = selection.candidates(names)
    pod = claiming(exactly(selector, memory="1Gi"))
    for memory in (1_000, 2_000, 3_000):
        answer = select_and_check(selection, pod, candidates)
        assert isinstance(answer, Selected)
        assert answer.placement.node == "n3"
        # A few nodes change, and are judged by what is remembered of cards in such a state.
        for name in ("n2", "n3", "n4"):
            hold(ledger, name, f"{name}-{indexes[name]}", memory=memory)


def test_an_administrator_gets_cards_that_the_arrays_show_as_full() -> None:
    ledger = ledger_of({name: (card(name),) for name in ("a", "b")})
    for name in ("a", "b"):
        hold(ledger, name, f"{name}-0", memory=MEMORY, cores=100)
    selection = Selector(ledger)
    answer = select_and_check(selection, claiming(exactly(adminAccess=True)), selection.candidates(["a", "b"]))
    assert isinstance(answer, Selected)


def test_a_node_whose_cards_do_not_match_one_another_is_not_chosen() -> None:
    ledger = ledger_of(
        {
            "apart": (card("apart", 0, numa=0), card("apart", 1, numa=1)),
            "close": (card("close", 0, numa=0), card("close", 1, numa=0)),
            "other": (card("other", 0, numa=0), card("other", 1, numa=1)),
        }
    )
    hold(ledger, "apart", "apart-0")  # It would be the better one.
    selection = Selector(ledger)
    same = [{"matchAttribute": "gpu.tessera.io/numaNode"}]
    pod = claiming(exactly(count=2, memory="1Gi"), constraints=same)
    answer = select_and_check(selection, pod, selection.candidates(["apart", "close", "other"]))
    assert isinstance(answer, Selected)
    assert answer.placement.node == "close"
    assert set(dict(answer.best_decided(3))) <= {"close"}  # Of the others it is not known, or known that they do not.


def test_victims_make_room_on_cards_that_match_one_another() -> None:
    """One victim beside the card that is free would be fewer, but on the wrong NUMA node."""
    ledger = ledger_of({"n": (card("n", 0, numa=0), card("n", 1, numa=0), card("n", 2, numa=1))})
    book = PlainBook()
    for uuid in ("n-0", "n-1"):
        hold(ledger, "n", uuid, memory=MEMORY)
        uid = f"on {uuid} {MEMORY}"
        book.pods[uid] = PodTraits(uid, "other", uid, priority=0, started=100)
    selection = Selector(ledger)
    same = [{"matchAttribute": "gpu.tessera.io/numaNode"}]
    pod = claiming(exactly(count=2, memory="16Gi"), constraints=same)
    found = Preemption(selection, book).find_for_pod(pod, priority=9, candidates=selection.candidates(["n"]))
    assert found is not None
    assert set(found.victims) == set(book.pods)


def test_a_claim_that_is_pinned_to_cards_gets_those() -> None:
    ledger = ledger_of({"n": (card("n", 0), card("n", 1))})
    node = ledger.node("n")
    assert node is not None
    for uuid in ("n-0", "n-1"):
        answer = fit_pod(node, pin(claiming(exactly(memory="1Gi")), [uuid]), ledger.rules, {})
        assert isinstance(answer, Placement)
        assert [grant.uuid for grant in answer.grants["NVIDIA"][0]] == [uuid]


def test_a_quota_pays_for_all_of_a_card_that_is_not_shared() -> None:
    ledger = ledger_of({"whole": (card("whole", mode=WHOLE),), "parts": (card("parts"),)})
    ledger.observe_quota(QuotaFacts("team", "q", {"nvidia.com/gpumem": 4_096}))
    selection = Selector(ledger)
    pod = claiming(exactly(memory="1Gi"))
    answer = select_and_check(selection, pod, selection.candidates(["whole", "parts"]))
    assert isinstance(answer, Selected)
    assert answer.placement.node == "parts"
    refused = select_and_check(selection, pod, selection.candidates(["whole"]))
    assert not isinstance(refused, Selected)
