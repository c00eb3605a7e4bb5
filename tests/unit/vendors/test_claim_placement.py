"""Where claims are placed, and what users read if they are not."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tessera.core.fit.fit import fit_pod
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Placement
from tessera.core.model.misfits import Misfit
from tessera.core.search.advice import refusal_sentence
from tessera.core.search.selection import Refused, Selector
from tessera.node.fleet import Fleet
from tessera.vendors.claims.allocations import allocation, claim_facts
from tessera.vendors.claims.asks import MODE_COST, BadClaim, asks_for_instance, claim_grants, read_claim, with_claims
from tessera.vendors.drafts import BadPod
from tessera.wire.cel import AllOf
from tessera.wire.cel.values import Meter
from tessera.wire.resource_api import Allocation, ResourceClaim
from tests.support import claims
from tests.support.builders import pod as pod_builder
from tests.support.builders import vendors
from tests.support.claim_placement import EMPTY, mig_fleet, place, written
from tests.support.claims import agent, ask, attribute, claim, device_class, exactly
from tests.support.sharing_modes import H200_MIB, A, B, C, card, fleet

INSTANCE = f"{attribute('type')} == 'mig'"

# -- placement


def uuids(answer: Placement | Misfit) -> list[list[str]]:
    assert isinstance(answer, Placement), answer
    return [[grant.uuid for grant in given] for given in answer.grants["NVIDIA"]]


def test_the_first_alternative_that_fits_is_taken() -> None:
    choice = {
        "name": "gpu",
        "firstAvailable": [
            {**exactly(f"{attribute('model')} == 'A100'"), "name": "best"},
            {**exactly(memory="1Gi"), "name": "good"},
            {**exactly(memory="2Gi"), "name": "last"},
        ],
    }
    found = ask(claim("c", choice))
    variants = with_claims(EMPTY, [found])
    assert not isinstance(variants, BadPod)
    assert [each.containers[0].name for each in variants] == ["c:gpu/best", "c:gpu/good", "c:gpu/last"]
    answer = place(claim("c", choice))
    assert isinstance(answer, Placement)
    assert answer.grants["NVIDIA"][0][0].memory == 1024
    given = claim_grants(variants[1], answer.grants)["c"]
    result = allocation(found, given, claims.pool(fleet(), agent()), new_share=lambda: "s")
    assert isinstance(result, Allocation)
    assert [each.request for each in result.devices.results or ()] == ["gpu/good"]


def test_a_count_is_of_different_cards() -> None:
    assert sorted(uuids(place(claim("c", gpu=exactly(count=2, memory="1Gi"))))[0]) == [A, B]
    answer = place(claim("c", gpu=exactly(count=3, memory="1Gi")))
    assert isinstance(answer, Misfit)
    assert answer.text == "NodeInsufficientDevice"


def test_several_cards_are_not_given_in_mode_mps() -> None:
    answer = place(claim("c", gpu=exactly(count=2)), settings=agent("mps"))
    assert isinstance(answer, Misfit)
    assert answer.text == "2/2 CardTypeMismatch"


@pytest.mark.parametrize("name", ["uuid", "model"])
def test_answers_about_many_nodes_follow_what_cards_publish(name: str) -> None:
    """Both that are kept for each card, and those that cards share."""
    wanted = {"uuid": "GPU-1", "model": "A100"}[name]
    matching: dict[str, Any] = {name: wanted}
    ledger = Ledger(vendors())
    accepts = AllOf("gpu.tessera.io", (f"{attribute(name)} == '{wanted}'",))

    def observe(node: str, *, uuid: str = "GPU-0", model: str = "T4", managed: bool = True) -> None:
        card = Device(uuid, "NVIDIA", 0, 10, 1000, model=model, mode="hami-core")
        ledger.observe_node(NodeFacts(node, (claims.publish(card) if managed else card,)))

    def selected() -> list[str]:
        names = ledger.arrays.names
        columns = ledger.arrays.selected(accepts, slice(0, len(names)))
        return [names[row] for row in np.flatnonzero(columns.any(axis=0)).tolist()]

    observe("a")
    observe("b")
    assert selected() == []
    observe("a", **matching)
    assert selected() == ["a"]
    observe("a", **matching, managed=False)
    assert selected() == []
    observe("a", **matching)
    observe("b", **matching)
    ledger.forget_node("a")
    assert selected() == ["b"]
    observe("c", **matching)  # It gets the place of the first one.
    for number in range(100):
        observe(f"n{number}", uuid=f"GPU-{number + 10}")
    assert sorted(selected()) == ["b", "c"]


def test_selectors_choose_the_card() -> None:
    assert uuids(place(claim("c", gpu=exactly(f"{attribute('uuid')} == '{B}'")))) == [[B]]
    assert uuids(place(claim("c", gpu=exactly(f"{attribute('index')} == 0", memory="1Gi")))) == [[A]]
    answer = place(claim("c", gpu=exactly(f"{attribute('missing')} == 0")))
    assert isinstance(answer, Misfit)
    assert answer.text == "2/2 CardSelectorMismatch"


@pytest.mark.parametrize(
    ("asked", "profile"),
    [
        (exactly(INSTANCE), "1g.18gb"),
        (exactly(INSTANCE, memory="20Gi"), "1g.35gb"),
        (exactly(f"{attribute('mode')} == 'mig'", cores="30"), "3g.71gb"),
        (exactly(f"has({attribute('profile')})"), "1g.18gb"),
        (exactly("device.driver == 'gpu.tessera.io'", f"!({attribute('type')} in ['gpu'])"), "1g.18gb"),
        (exactly(f"{attribute('profile')} == '3g.71gb'"), "3g.71gb"),
        (exactly(f"{attribute('profile')} == '3g.71gb'", memory="100Gi"), None),
        (exactly(f"{attribute('type')} == 'gpu'"), None),
        (exactly(), None),
        (exactly(memory="4Gi"), None),
        (exactly(f"{attribute('model')} == 'NVIDIA H200'", memory="4Gi"), None),
        (exactly(f"has({attribute('nvlinkGroup')}) || {attribute('mode')} != 'mps'", memory="4Gi"), None),
    ],
)
def test_a_claim_gets_an_instance_if_it_asks_for_one(asked: dict[str, Any], profile: str | None) -> None:
    answer = place(claim("c", gpu=asked), cards=mig_fleet(), settings=agent("mig"))
    if profile is None:
        assert isinstance(answer, Misfit)
    else:
        assert isinstance(answer, Placement), answer
        (grant,) = answer.grants["NVIDIA"][0]
        assert grant.mig is not None
        assert grant.mig.profile == profile


def test_what_a_selector_may_say_of_modes_is_bounded() -> None:
    """It says so at a cost that few people would write; what says nothing of them costs nothing."""
    costly = " || ".join(f"{attribute('mode')}.matches('m{'i?' * 20}g{n}')" for n in range(20))
    assert not asks_for_instance([costly, f"{attribute('mode')} == 'mig'"], Meter(MODE_COST))
    assert asks_for_instance([f"{attribute('model')} != ''", f"{attribute('mode')} == 'mig'"], Meter(MODE_COST))


SAME_ROOT = {"matchAttribute": "resource.kubernetes.io/pcieRoot"}


def rooted(*roots: str) -> Fleet:
    return Fleet(
        tuple(
            card(f"GPU-{number}", number, **({"pcie_root": root} if root else {})) for number, root in enumerate(roots)
        )
    )


@pytest.mark.parametrize(
    ("roots", "asked", "expected"),
    [
        (("x", "y", "y"), {"gpu": exactly(count=2)}, [["GPU-1", "GPU-2"]]),
        (("x", "y", "y"), {"a": exactly(), "b": exactly()}, [["GPU-1"], ["GPU-2"]]),
        (("x", "y", "z"), {"gpu": exactly(count=2)}, "3/3 CardAttributesNotFit"),
        (("", "", "y"), {"gpu": exactly(count=1)}, [["GPU-2"]]),
        (("", "", ""), {"gpu": exactly(count=1)}, "3/3 CardAttributesNotFit"),
        (("x", "x"), {"gpu": exactly(count=3)}, "NodeInsufficientDevice"),
    ],
)
def test_cards_have_one_value_of_an_attribute_that_must_match(
    roots: tuple[str, ...], asked: dict[str, Any], expected: object
) -> None:
    answer = place(claim("c", constraints=[SAME_ROOT], **asked), cards=rooted(*roots))
    found = answer.text if isinstance(answer, Misfit) else sorted(sorted(given) for given in uuids(answer))
    assert found == expected


def test_a_constraint_is_on_the_requests_that_it_names() -> None:
    asked = claim("c", a=exactly(), b=exactly(), constraints=[{**SAME_ROOT, "requests": ["b"]}])
    assert uuids(place(asked, cards=rooted("", "y"))) == [["GPU-0"], ["GPU-1"]]


@pytest.mark.parametrize("constraints", [[], [{"distinctAttribute": "gpu.tessera.io/uuid"}]])
def test_requests_share_a_card_unless_they_want_different_ones(constraints: list[dict[str, str]]) -> None:
    answer = place(
        claim("c", a=exactly(memory="1Gi"), b=exactly(memory="1Gi"), constraints=constraints), cards=fleet(A)
    )
    assert isinstance(answer, Misfit if constraints else Placement)


def test_instances_of_one_card_are_not_different_cards() -> None:
    different = [{"distinctAttribute": "gpu.tessera.io/uuid"}]
    two = exactly(INSTANCE, count=2)
    assert isinstance(place(claim("c", a=two), cards=mig_fleet(), settings=agent("mig")), Placement)
    asked = claim("c", a=two, constraints=different)
    assert isinstance(place(asked, cards=mig_fleet(), settings=agent("mig")), Misfit)


@pytest.mark.parametrize("wanted", [(A, "", ""), ("", B, ""), ("", "", A), ("", B, A), (B, A, "")])
def test_a_request_that_accepts_all_cards_leaves_another_its_only_one(wanted: tuple[str, ...]) -> None:
    asked = [
        {"name": f"r{number}", "exactly": exactly(*([f"{attribute('uuid')} == '{uuid}'"] if uuid else []))}
        for number, uuid in enumerate(wanted)
    ]
    found = uuids(place(claim("c", *asked), cards=fleet(A, B, C)))
    assert sorted(uuid for (uuid,) in found) == [A, B, C]
    assert all(not uuid or given == [uuid] for uuid, given in zip(wanted, found, strict=True))


def test_a_claim_is_held_while_init_containers_run() -> None:
    request = pod_builder().init(gpu=1, mem=100_000).container(gpu=1, mem=10_000).request()
    ledger = Ledger(vendors())
    ledger.observe_node(claims.node(fleet(A), agent()))
    node = ledger.node("n")
    assert node is not None
    for memory, fits in (("42Gi", True), ("43Gi", False)):  # of 143,771 MiB, beside 100,000
        variants = with_claims(request, [ask(claim("c", gpu=exactly(memory=memory)))])
        assert not isinstance(variants, BadPod)
        answer = fit_pod(node, variants[0], ledger.rules, {})
        assert isinstance(answer, Placement) is fits
        if isinstance(answer, Placement):
            ledger.reserve(variants[0], answer, deadline=1.0)
            assert [each.used_memory for each in node.cards] == [100_000 + 42 * 1024]
            ledger.release(variants[0].uid)


def test_an_administrator_gets_a_card_that_is_full() -> None:
    full, admin = claim("full", gpu=exactly()), claim("admin", gpu=exactly(adminAccess=True))
    cards, settings = fleet(A), agent()
    answer = place(full, admin, cards=cards, settings=settings)
    assert uuids(answer) == [[A], [A]]
    assert isinstance(answer, Placement)
    assert answer.grants["NVIDIA"][1][0].slots == 0
    assert isinstance(place(admin, cards=mig_fleet(), settings=agent("mig")), Misfit)
    result = written(admin, cards, settings)
    assert [(each.admin_access, each.share_id) for each in result.devices.results or ()] == [(True, None)]


def test_configuration_of_class_and_claim_is_handed_on() -> None:
    opaque = {"driver": "gpu.tessera.io", "parameters": {"a": 1}}
    classes = {"gpu.tessera.io": device_class(claims.OURS, config=[{"opaque": opaque}])}
    asked = claim("c", gpu=exactly())
    asked = msgspec.convert(
        msgspec.to_builtins(asked) | {"spec": {"devices": {**msgspec.to_builtins(asked.spec.devices), "config": [
            {"requests": ["gpu"], "opaque": opaque}]}}}, ResourceClaim
    )  # fmt: skip
    found = read_claim(asked, classes)
    assert not isinstance(found, BadClaim)
    given = {"gpu": (Grant(A, "NVIDIA", H200_MIB, 0),)}
    result = allocation(found, given, claims.pool(fleet(A), agent()), new_share=lambda: "s")
    assert isinstance(result, Allocation)
    assert [(each.source, each.requests) for each in result.devices.config or ()] == [
        ("FromClass", ("gpu",)),
        ("FromClaim", ("gpu",)),
    ]


def test_a_card_that_left_the_pool_meanwhile_is_not_written() -> None:
    found = ask(claim("c", gpu=exactly()))
    given = {"gpu": (Grant(B, "NVIDIA", 1, 0),)}
    assert isinstance(allocation(found, given, claims.pool(fleet(A), agent()), new_share=str), BadClaim)


# -- what users read, and quotas


def refusal(asked: ResourceClaim, *nodes: NodeFacts) -> str:
    ledger = Ledger(vendors())
    for each in nodes:
        ledger.observe_node(each)
    selector = Selector(ledger)
    candidates = selector.candidates([each.name for each in nodes])
    variants = with_claims(EMPTY, [ask(asked)])
    assert not isinstance(variants, BadPod)
    answer = selector.select(variants[0], candidates)
    assert isinstance(answer, Refused)
    rows = ledger.arrays.rows([each.name for each in nodes])
    return refusal_sentence(ledger, variants[0], rows, answer)


def test_a_refusal_names_the_request_whose_selectors_match_no_card() -> None:
    asked = claim("team", gpu=exactly(f"{attribute('model')} == 'A100'", memory="1Gi"))
    published, other = claims.node(fleet(), agent()), claims.node(fleet(C), agent(node="m"), managed=False)
    assert refusal(asked, published, other) == (
        "claim team, request gpu: 2 of 3 NVIDIA cards are for claims; the selectors match none of them"
    )
    assert refusal(asked, other) == (
        "claim team, request gpu: 0 of 1 NVIDIA cards are for claims; "
        "nodes publish them with --dra and --dra-allocator=tessera"
    )


def test_a_refusal_says_how_much_is_missing_on_the_cards_that_match() -> None:
    asked = claim("team", gpu=exactly(f"{attribute('uuid')} == '{B}'", memory="200Gi"))
    assert refusal(asked, claims.node(fleet(), agent())).startswith(
        f"needs 204800 MiB; the most free on one card is {H200_MIB} of {H200_MIB} MiB on n ({B})"
    )


def test_a_claim_is_not_told_to_name_a_mode() -> None:
    asked = claim("team", gpu=exactly(f"{attribute('profile')} == '3g.71gb'", memory="100Gi"))
    assert "annotation" not in refusal(asked, claims.node(mig_fleet(), agent("mig")))


def test_claims_count_in_quotas_of_memory_and_cores() -> None:
    cards, settings = fleet(A), agent()
    ledger = Ledger(vendors())
    ledger.observe_node(claims.node(cards, settings))
    limits = {"nvidia.com/gpumem": 10_000, "nvidia.com/gpucores": 50}
    ledger.observe_quota(QuotaFacts("default", "q", limits))
    node = ledger.node("n")
    assert node is not None

    def answer(**amounts: Any) -> Placement | Misfit:
        variants = with_claims(EMPTY, [ask(claim("c", gpu=exactly(**amounts)))])
        assert not isinstance(variants, BadPod)
        return fit_pod(node, variants[0], ledger.rules, ledger.rooms("default", ["NVIDIA"]))

    assert isinstance(answer(memory="9Gi", cores="50"), Placement)
    assert isinstance(answer(memory="10Gi"), Misfit)
    assert isinstance(answer(), Misfit)
    assert isinstance(answer(memory="1Gi", cores="51"), Misfit)
    held = claims.allocated(claim("c"), written(claim("c", gpu=exactly(memory="9Gi", cores="30")), cards, settings))
    facts = claim_facts(held, {"n": claims.pool(cards, settings)})
    assert facts is not None
    ledger.observe_pod(facts)
    assert isinstance(answer(memory="784Mi", cores="20"), Placement)
    assert isinstance(answer(memory="785Mi"), Misfit)
    assert isinstance(answer(memory="1Mi", cores="21"), Misfit)
