"""Whole Kunlun cards, slices, and the links of a board that decide which go together."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec
import pytest

from tessera.core.fit.device_rules import QuotaRoom
from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Constraint, Request
from tessera.vendors.base import ResourceNames, Switches
from tessera.vendors.drafts import BadRequest, Resources
from tessera.vendors.kunlun import CARD_MEMORY, CHART, COUNTS, FAMILY, Kunlun, Vxpu, bubbles, choose, seats
from tests.support.vendor_cases import VendorNode, devices, mutated, node, taken, warnings

XPU, VXPU, MEM = "kunlunxin.com/xpu", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
QUARTER, HALF = 24576, 49152
SLICES = ResourceNames(count=VXPU, memory=MEM)


@pytest.fixture
def whole() -> Kunlun:
    return Kunlun(CHART.names)


@pytest.fixture
def sliced() -> Vxpu:
    return Vxpu(SLICES)


def whole_cards(count: int = 8, *, used: tuple[int, ...] = ()) -> list[Card]:
    """Later cards first, as the default policy orders equal ones."""
    found = devices(Kunlun(CHART.names), node(capacity={XPU: count}))
    return [Card(device, used=int(device.index in used)) for device in reversed(found)]


def sliced_cards(
    *, used: dict[int, tuple[int, int]] | None = None, slots: int = 4, cores: int = 100, memory: int = CARD_MEMORY
) -> list[Card]:
    """Eight cards in order; `used` is (slices, MiB of each) by index."""
    found = []
    for index in range(8):
        count, each = (used or {}).get(index, (0, 0))
        device = Device(f"X{index}", "XPU", index, slots, memory, cores)
        found.append(Card(device, used=count, used_memory=count * each, used_cores=count * each * 100 // CARD_MEMORY))
    return found


def test_the_family_builds_both() -> None:
    assert [vendor.key for vendor in FAMILY.build(FAMILY.chart, Switches())] == ["kunlun", "XPU"]
    section = msgspec.convert({"resourceVCountName": "a/b", "resourceVMemoryName": "a/c"}, FAMILY.schema)
    assert [vendor.names.all for vendor in FAMILY.build(section, Switches())] == [(), ("a/b", "a/c")]


@pytest.mark.parametrize("vendor", [Kunlun(CHART.names), Vxpu(SLICES)])
def test_both_pairs_of_uuid_lists_are_read(vendor: Kunlun | Vxpu) -> None:
    annotations = {
        "hami.io/use-xpu-uuid": "a",
        "baidu.com/use-gpuuuid": "b,a",
        "hami.io/no-use-xpu-uuid": "c",
        "baidu.com/nouse-gpuuuid": "d",
    }
    assert vendor.constraint(annotations) == Constraint(use_uuids=("a", "b"), avoid_uuids=("c", "d"))


# -- whole cards


@pytest.mark.parametrize(
    ("limits", "expected"), [({XPU: 2}, Request("kunlun", 2, percent=100)), ({XPU: 0}, None), ({VXPU: 1}, None)]
)
def test_a_request_for_whole_cards(whole: Kunlun, limits: dict[str, Any], expected: Request | None) -> None:
    assert whole.request(Resources(limits=limits)) == expected
    assert mutated(whole, limits)[0] is (XPU in limits)


def test_a_number_that_never_fits_is_pointed_out_at_admission(whole: Kunlun, sliced: Vxpu) -> None:
    text = "Kunlun cards are given out as 1, 2, 4 or 8 to a container"
    assert warnings(whole, {XPU: 3}) == [f"{XPU}: 3 will never be placed: {text}"]
    assert warnings(sliced, {VXPU: 5}) == [f"{VXPU}: 5 will never be placed: {text}"]
    assert warnings(whole, {XPU: 4}) == warnings(whole, {XPU: "x"}) == warnings(whole, {XPU: 0}) == []
    answer = VendorNode(whole, whole_cards()).fit(Request("kunlun", 3))
    assert isinstance(answer, Misfit)
    assert (answer.text, answer.detail) == ("8/8 NumaNotFit", text)


def test_whole_cards_follow_from_the_capacity(whole: Kunlun) -> None:
    found = devices(whole, node(capacity={XPU: "3"}))
    assert found[0] == Device("n1-kunlun-0", "kunlun", 0, 100, 98304, 100, "kunlun", numa=0)
    assert [device.numa for device in found] == [0, 1, 1]
    assert devices(whole, node()) == ()


@pytest.mark.parametrize(
    ("used", "count", "expected"),
    [
        ((), 1, [0]),
        ((), 2, [0, 1]),
        ((), 4, [0, 1, 2, 3]),
        ((), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ((0,), 1, [1]),
        ((4, 5, 6), 1, [7]),
        ((0, 4, 5), 1, [1]),
        ((0, 1, 2, 4, 5, 6), 2, [3, 7]),
        ((0, 1, 5), 2, [2, 3]),
        ((3, 7), 4, [0, 1, 4, 5]),
        ((3, 4), 4, [1, 2, 5, 6]),
    ],
)
def test_cards_are_chosen_by_index(whole: Kunlun, used: tuple[int, ...], count: int, expected: list[int]) -> None:
    assert VendorNode(whole, whole_cards(used=used)).indexes(**{XPU: count}) == expected
    assert VendorNode(whole, whole_cards(used=used)[::-1], "binpack").indexes(**{XPU: count}) == expected


@pytest.mark.parametrize(
    ("used", "count", "expected"),
    [
        ((0,), 8, "1/8 ExclusiveDeviceAllocateConflict, 7/8 AllocatedCardsInsufficientRequest"),
        ((0, 1, 2, 4, 6, 7), 2, "2/8 NumaNotFit, 6/8 ExclusiveDeviceAllocateConflict"),
        (tuple(range(8)), 1, "8/8 ExclusiveDeviceAllocateConflict"),
        ((0,), 5, "1/8 ExclusiveDeviceAllocateConflict, 7/8 NumaNotFit"),
    ],
)
def test_cards_that_do_not_go_together(whole: Kunlun, used: tuple[int, ...], count: int, expected: str) -> None:
    assert VendorNode(whole, whole_cards(used=used)).refusal(**{XPU: count}) == expected


def test_unhealthy_and_unwanted_cards_are_not_free(whole: Kunlun) -> None:
    cards = [replace(card, device=replace(card.device, healthy=card.device.index != 0)) for card in whole_cards(2)]
    wishes = {"hami.io/no-use-xpu-uuid": "n1-kunlun-1"}
    assert VendorNode(whole, cards, annotations=wishes).refusal(**{XPU: 1}) == "1/2 CardNotHealth, 1/2 CardUuidMismatch"


def test_a_node_with_sixteen_cards_has_two_boards(whole: Kunlun) -> None:
    world = VendorNode(whole, whole_cards(16, used=(0,)))
    assert world.indexes(**{XPU: 8}) == list(range(8, 16))


def test_whole_cards_are_written_down_for_the_last_container_with_cards(whole: Kunlun) -> None:
    cards = whole_cards()
    world = VendorNode(whole, cards)
    first, second = world.grants(**{XPU: 1}), world.grants(**{XPU: 2})
    assert world.written(first, second, ()) == {
        "hami.io/kunlun-allocated": (
            "n1-kunlun-0,kunlun,98304,100:;n1-kunlun-0,kunlun,98304,100:n1-kunlun-1,kunlun,98304,100:;;"
        ),
        "BAIDU_COM_DEVICE_IDX": "0,1",
    }
    assert world.written(()) == {"hami.io/kunlun-allocated": ";"}
    assert [c.used for c in taken(whole, cards, second)] == [0, 0, 0, 0, 0, 0, 1, 1]


def granted(*indexes: int) -> tuple[Grant, ...]:
    return tuple(Grant(f"n1-kunlun-{i}", "kunlun", CARD_MEMORY, 100, i) for i in indexes)


@pytest.mark.parametrize(
    ("used", "containers", "expected"),
    [
        ((), [granted(0, 1, 2, 3)], 2000.0),
        ((), [granted(0, 1)], 1000.0),
        ((), [granted(0)], 0.0),
        ((), [granted(*range(8))], 3000.0),
        ((4,), [granted(0, 1, 2, 3)], 1000.0),
        ((4, 5), [granted(0, 1), (), granted(2, 3)], 3000.0),
        ((4, 5), [granted(0), granted(4)], 0.0),
        ((0, 1, 2, 3), [granted(4)], 0.0),
        ((0, 1, 2, 3), [granted(4), granted(0)], 1000.0),
    ],
)
def test_a_node_scores_by_how_ragged_its_use_becomes(
    whole: Kunlun, used: tuple[int, ...], containers: list[tuple[Grant, ...]], expected: float
) -> None:
    assert whole.scores_nodes
    assert VendorNode(whole, whole_cards(used=used)).score(*containers) == expected


def test_other_boards_do_not_count_in_the_score(whole: Kunlun) -> None:
    assert VendorNode(whole, whole_cards(16, used=(8,))).score(granted(0, 1, 2, 3)) == 2000.0


def test_a_node_with_other_cards_scores_nothing(whole: Kunlun) -> None:
    cards = [*whole_cards(), Card(Device("G", "NVIDIA"))]
    assert VendorNode(whole, cards).score(granted(0, 1, 2, 3)) == 0.0


# -- slices


@pytest.mark.parametrize(
    ("limits", "memory", "expected"),
    [
        ({VXPU: 1, MEM: 30000}, "49152", Request("XPU", 1, memory=HALF, cores=50)),
        ({VXPU: 1, MEM: 0}, "24576", Request("XPU", 1, memory=QUARTER, cores=25)),
        ({VXPU: 2, MEM: 24576}, "24576", Request("XPU", 2, memory=QUARTER, cores=25)),
        ({VXPU: 1, MEM: 49153}, "98304", Request("XPU", 1, memory=CARD_MEMORY, cores=100)),
        ({VXPU: 1}, None, Request("XPU", 1, memory=CARD_MEMORY, percent=100, cores=100)),
    ],
)
def test_memory_is_rounded_up_to_a_slice(
    sliced: Vxpu, limits: dict[str, Any], memory: str | None, expected: Request
) -> None:
    answer, draft = mutated(sliced, limits)
    assert answer is True
    assert draft.limits.get(MEM) == draft.requests.get(MEM) == memory
    assert sliced.request(Resources(limits=limits)) == sliced.request(draft) == expected


def test_pods_without_slices_are_left_alone(sliced: Vxpu) -> None:
    answer, draft = mutated(sliced, {MEM: 5})
    assert (answer, draft.limits) == (False, {MEM: 5})
    assert sliced.request(Resources(limits={MEM: 5})) is None


@pytest.mark.parametrize(
    ("memory", "advice"),
    [("100000", "at most that"), ("2Gi", "such as 2048"), ("-1", "whole number"), ("1500m", "whole number")],
)
def test_memory_that_cannot_be_honoured(sliced: Vxpu, memory: str, advice: str) -> None:
    limits = {VXPU: 1, MEM: memory}
    answer, draft = mutated(sliced, limits)
    assert (answer, draft.limits) == (True, limits)
    found = sliced.request(draft)
    assert isinstance(found, BadRequest)
    assert advice in found.text


def test_registered_cards(sliced: Vxpu) -> None:
    text = '[{"id":"X0","index":2,"count":4,"devmem":98304,"devcore":100,"type":"P800","numa":1,"health":true}]'
    assert devices(sliced, node(annotations={"hami.io/node-register-xpu": text})) == (
        Device("X0", "XPU", 2, 4, 98304, 100, "P800", numa=1),
    )


@pytest.mark.parametrize(
    ("used", "limits", "expected"),
    [
        (None, {VXPU: 1, MEM: HALF}, [0]),
        ({0: (1, HALF)}, {VXPU: 1, MEM: HALF}, [0]),
        ({0: (1, HALF)}, {VXPU: 1, MEM: QUARTER}, [1]),
        ({0: (2, HALF)}, {VXPU: 1, MEM: HALF}, [1]),
        (dict.fromkeys(range(7), (4, QUARTER)), {VXPU: 1}, [7]),
        ({0: (4, QUARTER), 4: (4, QUARTER)}, {VXPU: 4, MEM: QUARTER}, [2, 3, 6, 7]),
    ],
)
def test_slices_are_placed_by_the_layout(
    sliced: Vxpu, used: dict[int, tuple[int, int]] | None, limits: dict[str, Any], expected: list[int]
) -> None:
    assert VendorNode(sliced, sliced_cards(used=used)).indexes(**limits) == expected


def test_the_device_policy_decides_inside_a_wing(sliced: Vxpu) -> None:
    assert VendorNode(sliced, sliced_cards()[::-1]).indexes(**{VXPU: 1, MEM: HALF}) == [3]


@pytest.mark.parametrize(
    ("used", "card", "policy", "limits", "expected"),
    [
        (1, {}, "spread", {VXPU: 1}, "CardInsufficientMemory"),
        (1, {}, "spread", {VXPU: 1, MEM: 1}, "CardNotFoundCustomFilterRule"),
        (1, {}, "mutex", {VXPU: 1, MEM: HALF}, "ExclusiveDeviceAllocateConflict"),
        (1, {"slots": 0}, "mutex", {VXPU: 1, MEM: HALF}, "ExclusiveDeviceAllocateConflict"),
        (1, {"slots": 1}, "spread", {VXPU: 1, MEM: HALF}, "CardTimeSlicingExhausted"),
        (2, {"memory": 2 * CARD_MEMORY}, "spread", {VXPU: 1, MEM: HALF}, "CardInsufficientCore"),
    ],
)
def test_slices_that_do_not_fit_beside_halves(
    sliced: Vxpu, used: int, card: dict[str, int], policy: str, limits: dict[str, Any], expected: str
) -> None:
    cards = sliced_cards(used={0: (used, HALF)}, **card)[:1]
    assert VendorNode(sliced, cards, policy).refusal(**limits) == f"1/1 {expected}"


def test_a_card_that_registers_neither_slots_nor_cores_is_limited_by_memory(sliced: Vxpu) -> None:
    cards = sliced_cards(used={0: (3, QUARTER)}, slots=0, cores=0)[:1]
    world = VendorNode(sliced, cards)
    grants = world.grants(**{VXPU: 1, MEM: QUARTER})
    assert VendorNode(sliced, taken(sliced, cards, grants)).refusal(**{VXPU: 1, MEM: QUARTER}) == (
        "1/1 CardInsufficientMemory"
    )


def test_slices_are_written_down(sliced: Vxpu) -> None:
    world = VendorNode(sliced, sliced_cards())
    text = "X0,XPU,49152,50:X1,XPU,49152,50:;"
    assert world.written(world.grants(**{VXPU: 2, MEM: HALF})) == {
        "hami.io/xpu-devices-to-allocate": text,
        "hami.io/xpu-devices-allocated": text,
    }


def test_quotas_on_slices(sliced: Vxpu) -> None:
    assert sliced.quota_memory == MEM
    limits = {VXPU: 2, MEM: HALF}
    assert (
        VendorNode(sliced, sliced_cards(), room=QuotaRoom(memory=HALF - 1)).refusal(**limits)
        == "8/8 ResourceQuotaNotFit"
    )
    assert (
        VendorNode(sliced, sliced_cards(), room=QuotaRoom(memory=2 * HALF - 1)).refusal(**limits)
        == "8/8 ResourceQuotaNotFit"
    )
    assert VendorNode(sliced, sliced_cards(), room=QuotaRoom(memory=2 * HALF)).indexes(**limits) == [0, 1]


LEFT, RIGHT = {0, 1, 2, 3}, {4, 5, 6, 7}
LINKS = [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
GROUPS = [set(map(int, text)) for text in ("0145", "2367", "0246", "1357", "0347", "1256")]


def by_the_book(count: int, free: set[int]) -> set[int] | None:
    """The protocol's sentences, one after the other."""
    if count == 8:
        return free if free == LEFT | RIGHT else None
    if count not in (1, 2, 4):
        return None
    left, right = sorted(free & LEFT), sorted(free & RIGHT)
    if len(left) >= count or len(right) >= count:
        for slots in range(count, 5):
            number = [1, 3, 2, 4][slots - 1] if count % 2 else slots
            if len(left) == number:
                return set(left[:count])
            if len(right) == number:
                return set(right[:count])
    if count == 2:
        return next((pair for pair in LINKS if pair <= free), None)
    contained = [group for group in GROUPS if group <= free]
    if count == 4 and len(free) in (4, 5):
        return contained[0] if contained else None
    if count == 4 and len(free) == 6 and contained:
        for group in contained:
            rest = free - group
            if rest in LINKS or rest <= LEFT or rest <= RIGHT:
                return group
        return contained[-1]
    return None


FREE_SETS = [set(chosen) for size in range(9) for chosen in combinations(range(8), size)]


@pytest.mark.parametrize("count", range(10))
def test_every_state_of_a_board_is_decided_by_the_book(count: int) -> None:
    for free in FREE_SETS:
        expected = by_the_book(count, free)
        assert choose(count, sorted(free)) == (None if expected is None else tuple(sorted(expected))), free


@pytest.mark.parametrize("count", COUNTS)
def test_a_choice_has_the_right_size_and_is_free(count: int) -> None:
    for free in FREE_SETS:
        chosen = choose(count, sorted(free))
        assert chosen is None or (len(chosen) == count and set(chosen) <= free)


def test_six_free_cards_leave_two_that_are_linked() -> None:
    assert choose(4, [0, 1, 2, 4, 5, 6]) == (0, 1, 4, 5)
    assert choose(4, [0, 1, 2, 5, 6, 7]) == (1, 2, 5, 6)


def test_preference_decides_inside_a_wing_only() -> None:
    assert choose(2, [3, 1, 0]) == (1, 3)
    assert choose(1, [7, 6, 0]) == (0,)


@pytest.mark.parametrize(
    ("count", "free", "expected"),
    [
        (2, [0, 1], (0, 1)),
        (4, [0, 1, 2, 3], (0, 1, 2, 3)),
        (8, [0, 1, 2, 3], None),
        (2, [0, 12], None),
        (2, [4, 12, 13], (12, 13)),
        (2, [0, 4, 12, 13], (0, 4)),
        (8, list(range(1, 16)), (8, 9, 10, 11, 12, 13, 14, 15)),
        (1, [], None),
        (1, [2**31 - 1], (2**31 - 1,)),
    ],
)
def test_nodes_with_fewer_or_more_than_eight_cards(
    count: int, free: list[int], expected: tuple[int, ...] | None
) -> None:
    assert choose(count, free) == expected


def device(uuid: str, index: int) -> Device:
    return Device(uuid, "XPU", index)


def test_a_seat_is_the_index() -> None:
    assert seats([device("b", 5), device("a", 0)]) == {"a": 0, "b": 5}


def test_cards_with_equal_indexes_are_seated_by_rank() -> None:
    assert seats([device("b", 0), device("c", 9), device("a", 0)]) == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (set(), 1),
        ({0}, 3),
        ({0, 1}, 2),
        ({0, 1, 2, 3}, 1),
        ({0, 1, 2, 3, 4}, 2),
        ({0, 4}, 4),
        ({0, 1, 2, 3, 4, 5, 6, 7}, 0),
        ({8, 9, 10, 11}, 1),
    ],
)
def test_how_ragged_the_use_of_a_board_is(used: set[int], expected: int) -> None:
    assert bubbles(frozenset(used)) == expected
