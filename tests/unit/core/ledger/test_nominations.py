"""What a nomination claims, whichever other nominations and victims come to nothing."""

from __future__ import annotations

import pytest

from tessera.core.fit.fit import fit_pod
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.audit import audit
from tessera.core.ledger.holdings import Holding, PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.ledger.nominations import NominationBook, Part, Share, with_nominations
from tessera.core.model.devices import Device
from tessera.core.model.grants import Use
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card, Tenant
from tessera.vendors.node_reader import node_facts
from tests.support.builders import PodBuilder, gpu_pod, node, vendors

CARD = 40_000
"""MiB"""


def world() -> Ledger:
    ledger = Ledger(vendors())
    ledger.observe_node(node_facts(node("n1").gpus(1, memory=CARD).api(), vendors()))
    return ledger


def held(name: str, memory: int) -> PodFacts:
    return gpu_pod(name, mem=memory).on("n1", f"n1-0,NVIDIA,{memory},0:;").facts()


def fits(ledger: Ledger, pod: PodBuilder, *, nominee: bool = False) -> bool:
    request = pod.request()
    uid = request.uid if nominee else ""
    view, rooms = ledger.node("n1", nominee=uid), ledger.rooms("default", request.vendors, nominee=uid)
    assert view is not None
    return not isinstance(fit_pod(view, request, ledger.rules, rooms), Misfit)


def test_what_is_claimed_is_taken_for_all_pods_but_the_claimant() -> None:
    ledger = world()
    ledger.observe_pod(held("victim", 30_000))
    ledger.nominate(held("nominee", 35_000), frozenset({"uid-victim"}))
    assert not fits(ledger, gpu_pod("other", mem=10_000)), "free now, but not later"
    assert fits(ledger, gpu_pod("other", mem=5_000)), "beside both"
    assert not fits(ledger, gpu_pod("nominee", mem=35_000), nominee=True), "the victim is there"
    ledger.release("uid-victim")
    assert fits(ledger, gpu_pod("nominee", mem=35_000), nominee=True)
    assert audit(ledger) == []


def test_a_victim_that_stays_because_its_nomination_ended_takes_nothing_from_another_nomination() -> None:
    ledger = world()
    ledger.observe_pod(held("victim", 20_000))
    ledger.nominate(held("first", 14_000), frozenset())
    ledger.nominate(held("second", 10_000), frozenset({"uid-victim"}))
    assert not fits(ledger, gpu_pod("other", mem=10_000)), "with the victim and the first claim there is no room"
    ledger.withdraw("uid-second")
    assert fits(ledger, gpu_pod("first", mem=14_000), nominee=True)
    assert audit(ledger) == []


@pytest.mark.parametrize(
    ("core_masks", "staying", "victim", "claimed", "cores"),
    [
        (False, 10, 30, 50, 60),
        (False, 10, 50, 30, 60),
        (False, 7, 3, 3, 10),
        (True, 0b0001, 0b0010, 0b0110, 0b0111),
        (True, 0b0001, 0b0110, 0b0010, 0b0111),
        (True, 0b1000, 0b0010, 0b0110, 0b1110),
    ],
)
def test_cores_add_up_beside_the_larger_part_and_core_ids_are_all_held(
    core_masks: bool, staying: int, victim: int, claimed: int, cores: int
) -> None:
    pods, held, nominated = (
        [Share(Tenant(uid), Holding(Use(1, 100 * number, number)))]
        for uid, number in (("stays", staying), ("victim", victim), ("nominee", claimed))
    )
    card = with_nominations(Card(Device("G", "V")), pods, [Part(held, nominated)], core_masks=core_masks)
    assert (card.used, card.used_memory, card.used_cores) == (2, 100 * (staying + max(victim, claimed)), cores)
    assert [tenant.uid for tenant in card.tenants] == ["stays", "victim", "nominee"]


def test_the_same_holds_for_quotas() -> None:
    ledger = world()
    ledger.observe_quota(QuotaFacts("default", "q", {"nvidia.com/gpumem": 30_000}))
    ledger.observe_pod(held("victim", 10_000))
    ledger.nominate(held("first", 10_000), frozenset())
    ledger.nominate(held("second", 5_000), frozenset({"uid-victim"}))
    assert fits(ledger, gpu_pod("other", mem=10_000))
    assert not fits(ledger, gpu_pod("other", mem=10_001))
    ledger.observe_pod(held("other", 10_000))
    ledger.withdraw("uid-second")
    assert fits(ledger, gpu_pod("first", mem=10_000), nominee=True)


def test_placing_a_pod_ends_its_nomination() -> None:
    ledger = world()
    ledger.nominate(held("p", 10_000), frozenset())
    ledger.observe_pod(held("p", 10_000))
    assert not ledger.nominations.all()
    assert vars(ledger.nominations) == vars(NominationBook()), "nothing is kept of nodes without nominations"
    [card] = ledger.node("n1").cards  # type: ignore[union-attr]
    assert card.used_memory == 10_000
