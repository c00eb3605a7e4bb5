"""Claims in the words of the core: what they ask for, what they hold, and what is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tessera.core.fit.fit import fit_pod
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.core.model.grants import Grant, Placement
from tessera.core.model.misfits import Misfit
from tessera.vendors.claims.allocations import claim_facts
from tessera.vendors.claims.asks import BadClaim, is_our_class, read_claim, with_claims
from tessera.vendors.claims.pools import pool_devices
from tessera.vendors.drafts import BadPod
from tessera.wire.resource_api import ResourceClaim
from tests.support import claims
from tests.support.builders import vendors
from tests.support.claim_placement import EMPTY, mig_fleet, place, written
from tests.support.claims import agent, ask, attribute, claim, device_class, exactly
from tests.support.sharing_modes import H200_MIB, A, B, fleet

# -- what is written, and what is read again


def test_a_part_of_a_card_is_written_as_a_stock_scheduler_would() -> None:
    settings = agent()
    answer = written(claim("c", gpu=exactly(memory="4Gi", cores="30")), fleet(A), settings)
    assert msgspec.to_builtins(answer) == {
        "devices": {
            "results": (
                {
                    "request": "gpu",
                    "driver": "gpu.tessera.io",
                    "pool": "n",
                    "device": A.lower(),
                    "shareID": "share-1",
                    "consumedCapacity": {"memory": "4Gi", "cores": "30", "shares": "1"},
                },
            ),
        },
        "nodeSelector": {
            "nodeSelectorTerms": ({"matchFields": ({"key": "metadata.name", "operator": "In", "values": ("n",)},)},)
        },
    }


@pytest.mark.parametrize(
    ("mode", "asked", "held"),
    [
        ("hami-core", exactly(memory="4Gi", cores="30"), Grant(A, "NVIDIA", 4096, 30)),
        ("hami-core", exactly(memory="4097Ki"), Grant(A, "NVIDIA", 5, 0)),
        ("mps", exactly(), Grant(A, "NVIDIA", H200_MIB, 0)),
        ("none", exactly(memory="4Gi"), Grant(A, "NVIDIA", H200_MIB, 100)),
        (
            "mig",
            exactly(f"{attribute('profile')} == '1g.18gb'"),
            Grant(A, "NVIDIA", 16384, 13, mig=MigSlot("1g.18gb", MigPlacement(6, 1))),
        ),
    ],
)
def test_a_claim_holds_what_was_placed(mode: Any, asked: dict[str, Any], held: Grant) -> None:
    cards, settings = mig_fleet() if mode == "mig" else fleet(A), agent(mode)
    asking = claim("c", gpu=asked)
    placement = place(asking, cards=cards, settings=settings)
    assert isinstance(placement, Placement), placement
    shown = claims.allocated(asking, written(asking, cards, settings))
    facts = claim_facts(shown, {"n": claims.pool(cards, settings)})
    assert facts is not None
    assert (facts.uid, facts.namespace, facts.node, facts.problem) == ("default/c", "default", "n", "")
    assert facts.grants == {"NVIDIA": ((held,),)} == placement.grants


def test_a_claim_that_another_scheduler_allocated_is_counted_as_it_is() -> None:
    part = {"driver": "gpu.tessera.io", "pool": "n", "device": A.lower(), "request": "gpu"}
    consumed = {"gpu.tessera.io/memory": "1025Ki", "cores": "7"}
    results = [
        {**part, "shareID": "s", "consumedCapacity": consumed},
        {**part, "shareID": "t", "consumedCapacity": {"memory": "1Gi", "cores": "0.5"}},
        {**part, "adminAccess": True},
        {**part, "driver": "nic.example.com", "device": "nic-0"},
    ]
    shown = msgspec.convert(
        {"metadata": {"uid": "u", "name": "c"}, "status": {"allocation": {"devices": {"results": results}}}},
        ResourceClaim,
    )
    settings = agent()
    facts = claim_facts(shown, {"n": claims.pool(fleet(A), settings, managed=False)})
    assert facts is not None
    assert facts.grants == {"NVIDIA": ((Grant(A, "NVIDIA", 2, 7), Grant(A, "NVIDIA", 1024, 1)),)}


@pytest.mark.parametrize(
    ("pools", "device", "consumed", "problem"),
    [
        ({}, A.lower(), None, 'pool "n": it is not there'),
        ({"n": pool_devices([])}, A.lower(), None, 'pool "n": no ResourceSlice'),
        ({"n": claims.pool(fleet(A), agent())}, f"{A.lower()}-1g-18gb-0", None, "is not in its pool"),
        ({"n": claims.pool(fleet(A), agent())}, A.lower(), {"cores": "1"}, "nothing of gpu.tessera.io/memory"),
        # The card is gone: there is nothing to protect.
        ({"n": claims.pool(fleet(A), agent())}, B.lower(), None, ""),
    ],
)
def test_what_cannot_be_read_blocks_the_node(
    pools: dict[str, Any], device: str, consumed: dict[str, str] | None, problem: str
) -> None:
    result: dict[str, Any] = {"driver": "gpu.tessera.io", "pool": "n", "device": device, "request": "gpu"}
    result |= {"consumedCapacity": consumed} if consumed else {}
    status = {"allocation": {"devices": {"results": [result]}}}
    facts = claim_facts(msgspec.convert({"metadata": {"uid": "u"}, "status": status}, ResourceClaim), pools)
    assert facts is not None
    assert (facts.node, facts.grants) == ("n", {"NVIDIA": ((),)})
    assert problem in facts.problem
    assert bool(problem) is bool(facts.problem)


@pytest.mark.parametrize("pools", [{}, {"n": pool_devices([])}, {"n": claims.pool(fleet(B), agent())}])
def test_amounts_of_a_device_that_no_slice_shows_count_against_quotas(pools: dict[str, Any]) -> None:
    cards, settings = fleet(A), agent()
    asked = claim("c", gpu=exactly(memory="9Gi", cores="30"))
    held = claims.allocated(asked, written(asked, cards, settings))
    facts = claim_facts(held, pools)
    assert facts is not None
    assert facts.grants == {"NVIDIA": ((Grant(A, "NVIDIA", 9 * 1024, 30),),)}
    ledger = Ledger(vendors())
    ledger.observe_quota(QuotaFacts("default", "q", {"nvidia.com/gpumem": 10_000}))
    ledger.observe_pod(facts)
    assert ledger.rooms("default", ["NVIDIA"])["NVIDIA"].memory == 10_000 - 9 * 1024


def test_a_claim_of_other_drivers_holds_nothing_here() -> None:
    assert claim_facts(claim("c", gpu=exactly()), {}) is None


# -- pools


def test_a_pool_counts_when_its_newest_generation_is_complete() -> None:
    old, new = (claims.slices(mig_fleet(), agent("mig"), generation=number) for number in (1, 2))
    assert len(new) > 1
    assert pool_devices([*old, *new]).node == "n"
    assert pool_devices([*old, *new[1:]]).problem == f"1 of {len(new)} ResourceSlices of generation 2 are there"
    assert pool_devices([*old, *new[1:]]).devices == {}


def test_devices_that_another_scheduler_allocates_are_not_for_our_claims() -> None:
    facts = claims.node(fleet(A), agent(), managed=False)
    assert [card.published for card in facts.devices] == [()]
    ledger = Ledger(vendors())
    ledger.observe_node(facts)
    variants = with_claims(EMPTY, [ask(claim("c", gpu=exactly()))])
    assert not isinstance(variants, BadPod)
    node = ledger.node("n")
    assert node is not None
    answer = fit_pod(node, variants[0], ledger.rules, {})
    assert isinstance(answer, Misfit)
    assert answer.text == "1/1 CardSelectorMismatch"


# -- classes


@pytest.mark.parametrize(
    ("expressions", "ours"),
    [
        (["device.driver == 'gpu.tessera.io'"], True),
        (["device.driver == 'gpu.tessera.io' && device.attributes['gpu.tessera.io'].type == 'mig'"], True),
        (["device.attributes['gpu.tessera.io'].type == 'gpu'", "device.driver == 'gpu.tessera.io'"], True),
        (["device.driver in ['gpu.tessera.io']"], True),
        (["device.driver in ['gpu.tessera.io', 'other.invalid']"], False),
        (["device.driver == 'gpu.nvidia.com'"], False),
        (["device.attributes['gpu.tessera.io'].type == 'gpu'"], False),  # Others may publish that too.
        (["true"], False),
        ([], False),
        (["device.driver == 'gpu.tessera.io'", "whatever(device)"], False),
    ],
)
def test_a_class_is_ours_if_no_device_of_another_driver_is_of_it(expressions: list[str], ours: bool) -> None:
    assert is_our_class(device_class(*expressions)) is ours


# -- what is refused


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (exactly(allocationMode="All"), "allocationMode All"),
        (exactly("device.name == 'a'"), "is not supported: device.name"),
        (exactly(memory="lots"), "is not an amount"),
        (exactly(memory="-1"), "is not an amount"),
        (exactly(memory="1Ei"), "more than any card has"),
        (exactly(cores="101"), "a whole card is 100"),
        (exactly(shares="2"), "a claim takes 1"),
        (exactly(capacity={"requests": {"bandwidth": "1"}}), 'no device has the capacity "bandwidth"'),
        (exactly(deviceClassName="none"), 'the DeviceClass "none" does not exist'),
        (exactly(count=0), "a count of 0"),
    ],
)
def test_what_cannot_be_served_exactly_is_refused(asked: dict[str, Any], reason: str) -> None:
    found = read_claim(claim("c", gpu=asked), claims.CLASSES)
    assert isinstance(found, BadClaim)
    assert found.message.startswith("ResourceClaim c: request gpu: ")
    assert reason in found.text


def test_a_claim_of_another_drivers_class_is_left_to_other_schedulers() -> None:
    others = {"nic": device_class("device.driver == 'nic.example.com'", name="nic")}
    found = read_claim(claim("c", gpu=exactly(deviceClassName="nic")), others)
    assert isinstance(found, BadClaim)
    assert found.is_foreign
    assert "the default scheduler" in found.text
    missing = read_claim(claim("c", gpu=exactly(deviceClassName="nic")), {})
    assert isinstance(missing, BadClaim)
    assert missing.is_early


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ({"distinctAttribute": "gpu.tessera.io/model"}, "distinctAttribute"),
        ({"requests": ["gpu"]}, "a constraint of a kind"),
    ],
)
def test_constraints_of_other_kinds_are_refused(constraint: dict[str, Any], reason: str) -> None:
    found = read_claim(claim("c", gpu=exactly(), constraints=[constraint]), claims.CLASSES)
    assert isinstance(found, BadClaim)
    assert reason in found.text


def test_a_pod_cannot_have_more_combinations_of_alternatives_than_are_tried() -> None:
    choice = {"firstAvailable": [{**exactly(), "name": name} for name in "ab"]}
    asked = claim("c", *({"name": f"r{number}", **choice} for number in range(6)))
    answer = with_claims(EMPTY, [ask(asked)])
    assert isinstance(answer, BadPod)
    assert "64 combinations" in answer.text


def test_a_pod_cannot_have_more_requests_than_are_placed() -> None:
    answer = with_claims(EMPTY, [ask(claim("c", *({"name": f"r{n}", "exactly": exactly()} for n in range(17))))])
    assert isinstance(answer, BadPod)
    assert "17 requests" in answer.text
