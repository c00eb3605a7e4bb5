from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest

from tessera.core.fit.device_rules import QuotaRoom
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import Misfit, Reason
from tessera.core.model.node_info import Card, NodeInfo
from tessera.core.model.requests import PodRequest, Request
from tessera.vendors import registry
from tessera.vendors.ascend import CHART, FAMILY, Ascend, AscendSection, Chip, Template
from tessera.vendors.base import Bound, Switches
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.wire.device_config import load_device_config
from tests.support.vendor_cases import VendorNode, chosen, devices, node

CHIPS = {chip.common_word: chip for chip in CHART.configs}
SOFT = {"huawei.com/vnpu-mode": "hami-core"}


def vendor(word: str = "Ascend910B3", *, soft_split: bool = False, **changes: Any) -> Ascend:
    chip = msgspec.structs.replace(CHIPS[word], **changes)
    return Ascend(chip, soft_split=soft_split)


def limits(word: str, count: Any = None, memory: Any = None, cores: Any = None) -> dict[str, Any]:
    pairs = {"": count, "-memory": memory, "-core": cores}
    return {f"huawei.com/{word}{suffix}": value for suffix, value in pairs.items() if value is not None}


def card(
    index: int, *, network: Any = None, numa: int = 0, used: int = 0, memory: int = 0, cores: int = 0, **facts: Any
) -> Card:
    fields = {"slots": 10, "memory": 65536, "vendor": "Ascend910B3", **facts}
    custom = {} if network is None else {"NetworkID": network}
    device = Device(uuid=f"U{index}", index=index, numa=numa, custom=custom, **fields)
    return Card(device, used=used, used_memory=memory, used_cores=cores)


def fit(
    backend: Ascend, cards: list[Card], *, count: int = 1, memory: int = 0, cores: int = 0, **world: Any
) -> Grants | Misfit:
    asked = Request(backend.key, count, memory, percent=0 if memory else 100, cores=cores)
    return VendorNode(backend, cards, **world).fit(asked)


# -- configuration


def test_chips_exist_only_where_ascend_is_switched_on() -> None:
    assert FAMILY.build(CHART, Switches()) == []
    assert [v.key for v in FAMILY.build(CHART, Switches(ascend=True))] == list(CHIPS)
    assert list(CHIPS)[:2] == ["Ascend910A", "Ascend910B2"]
    assert FAMILY.build(AscendSection(), Switches(ascend=True)) == []


def test_a_section_is_read_with_its_own_spelling_and_with_defaults() -> None:
    half = {"name": "half", "memory": 50, "aiCore": 4, "aiCPU": 3}
    names = {"commonWord": "Ascend910X", "chipName": "910X", "resourceName": "huawei.com/x", "superPod": True}
    amounts = {"memoryAllocatable": 100, "memoryCapacity": 110, "aiCore": 8, "aiCPU": 7}
    raw = {"hamiVnpuCore": True, "unknown": 1, "configs": [{**names, **amounts, "templates": [half]}]}
    section = msgspec.convert(raw, AscendSection)
    (chip,) = section.configs
    assert section.hami_vnpu_core
    assert (chip.common_word, chip.chip_name, chip.resource_name) == ("Ascend910X", "910X", "huawei.com/x")
    assert (chip.memory_allocatable, chip.memory_capacity, chip.ai_core, chip.ai_cpu) == (100, 110, 8, 7)
    assert (chip.super_pod, chip.templates) == (True, (Template(name="half", memory=50, ai_core=4, ai_cpu=3),))


@pytest.mark.parametrize("word", [None, "", "a/b", "-a", "a" * 100, "日本"])
def test_a_chip_without_a_usable_word_is_refused(word: str | None) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"configs": [{} if word is None else {"commonWord": word}]}, AscendSection)


def test_the_plain_list_of_old_files_becomes_a_section() -> None:
    read = load_device_config("vnpus: [{commonWord: Ascend310P}]", file="f.yaml", schemas=registry.schemas())
    assert read == {"vnpus": AscendSection(configs=(Chip(common_word="Ascend310P"),))}


@pytest.mark.parametrize(
    ("word", "memory", "expected"),
    [
        ("Ascend910A", 0, ("vir02", 2184)),
        ("Ascend910A", 2184, ("vir02", 2184)),
        ("Ascend910A", 2185, ("vir04", 4369)),
        ("Ascend910A", 17477, ("", 32768)),
        ("Ascend910B2", 9000, ("vir06_1c_16g", 16384)),
        ("Ascend910B4", 9000, ("vir10_3c_16g", 16384)),
        ("Ascend310P", 13000, ("", 21527)),
        ("Ascend310P", 24576, ("", 21527)),
        ("Ascend310P", 24577, None),
        ("Ascend910C", 2000, ("vir05_1c_16g", 16384)),
    ],
)
def test_memory_means_the_smallest_template_that_holds_it(
    word: str, memory: int, expected: tuple[str, int] | None
) -> None:
    template = CHIPS[word].template(memory)
    assert (template and (template.name, template.memory)) == expected


def test_templates_without_memory_are_never_given() -> None:
    assert Chip(common_word="x", memory_capacity=10, templates=(Template(name="zero"),)).template(0) is None


# -- admission


@pytest.mark.parametrize(
    ("word", "before", "after"),
    [
        ("Ascend910B3", (1, 2000, None), (1, "16384")),
        ("Ascend910B3", (1, None, None), (1, "65536")),
        ("Ascend910B3", (2, None, None), (2, "65536")),
        ("Ascend910B3", (2, 65536, None), (2, "65536")),
        ("Ascend910B3", (2, 40000, None), (2, "65536")),
        ("Ascend910B3", (1, 2000, 0), (1, "16384")),
        ("Ascend310P", (1, 13000, None), (1, "21527")),
        ("Ascend310P", (1, 24000, None), (1, "21527")),
        ("Ascend910C", (1, None, None), ("2", "65536")),
        ("Ascend910C", (1, 2000, None), ("2", "16384")),
        ("Ascend910C", (4, None, None), (4, "65536")),
    ],
)
def test_the_webhook_rounds_memory_to_a_template(
    word: str, before: tuple[Any, Any, Any], after: tuple[Any, Any]
) -> None:
    container, pod = ContainerDraft(limits=limits(word, *before)), PodDraft()
    backend = vendor(word)
    assert backend.mutate(container, pod) is True
    name = f"huawei.com/{word}"
    assert (container.limits[name], container.limits[f"{name}-memory"]) == after
    assert container.requests == {f"{name}-memory": after[1]}
    once = deepcopy((container, pod))
    assert backend.mutate(container, pod) is True
    assert (container, pod) == once


@pytest.mark.parametrize(
    ("word", "before", "annotations", "text"),
    [
        ("Ascend910B3", (2, 2000, None), {}, "vNPU not supported for multiple devices"),
        ("Ascend910B3", (1, 70000, None), {}, "huawei.com/Ascend910B3-memory 70000 is invalid"),
        (
            "Ascend910B3",
            (1, 2000, 10),
            {},
            "huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode",
        ),
        ("Ascend910C", (3, None, None), {}, "Ascend910C device request must be 1 or 2*n, got 3"),
        ("Ascend910C", (3, None, None), SOFT, "Ascend910C device request must be 1 or 2*n, got 3"),
        ("Ascend910C", (4, 2000, None), {}, "vNPU not supported for multiple devices"),
    ],
)
def test_the_webhook_refuses_what_a_chip_cannot_do(
    word: str, before: tuple[Any, Any, Any], annotations: dict[str, str], text: str
) -> None:
    container = ContainerDraft(limits=limits(word, *before))
    assert vendor(word).mutate(container, PodDraft(annotations=dict(annotations))) == Denied(text)


@pytest.mark.parametrize(("count", "memory", "expected"), [(1, 2000, "2000"), (2, 2000, "2000"), (1, None, "65536")])
def test_soft_split_keeps_the_memory_and_the_cores(count: int, memory: int | None, expected: str) -> None:
    container = ContainerDraft(limits=limits("Ascend910B3", count, memory, 30))
    pod = PodDraft(annotations=dict(SOFT))
    assert vendor().mutate(container, pod) is True
    assert container.limits["huawei.com/Ascend910B3-memory"] == expected
    assert pod.warnings == []


def test_a_raised_count_is_raised_in_the_requests_too() -> None:
    container = ContainerDraft(limits=limits("Ascend910C", 1), requests=limits("Ascend910C", "1"))
    pod = PodDraft()
    vendor("Ascend910C").mutate(container, pod)
    assert container.requests["huawei.com/Ascend910C"] == "2"
    assert pod.warnings == ["huawei.com/Ascend910C: 1 was raised to 2, because a module holds two chips"]


@pytest.mark.parametrize("count", [1, 3])
def test_without_a_super_pod_a_910c_is_a_chip_like_others(count: int) -> None:
    container, backend = ContainerDraft(limits=limits("Ascend910C", count)), vendor("Ascend910C", super_pod=False)
    assert backend.mutate(container, PodDraft()) is True
    assert isinstance(backend.request(container), Request)
    assert container.limits["huawei.com/Ascend910C"] == count


def test_a_user_is_told_what_memory_became() -> None:
    pod = PodDraft()
    vendor().mutate(ContainerDraft(limits=limits("Ascend910B3", 1, 2000)), pod)
    assert pod.warnings == [
        "huawei.com/Ascend910B3-memory: 2000 became 16384, the next size that Ascend910B3 can be cut to"
    ]


@pytest.mark.parametrize(
    ("factor", "asked", "expected"),
    [(1024, 2, "16"), (1024, 16, "16"), (1024, 17, "32"), (1024, None, "64"), (0, 2000, "16384"), (100, 20, "163")],
)
def test_memory_in_larger_units_is_rounded_in_these_units(factor: int, asked: int | None, expected: str) -> None:
    backend = vendor(memory_factor=factor)
    container, pod = ContainerDraft(limits=limits("Ascend910B3", 1, asked)), PodDraft()
    assert backend.mutate(container, pod) is True
    assert container.limits["huawei.com/Ascend910B3-memory"] == expected
    assert backend.mutate(container, pod) is True
    assert container.limits["huawei.com/Ascend910B3-memory"] == expected


def test_a_runtime_class_is_set_where_the_pod_has_none() -> None:
    backend = vendor(runtime_class_name="ascend")
    pod = PodDraft()
    backend.mutate(ContainerDraft(limits=limits("Ascend910B3", 1)), pod)
    assert pod.runtime_class == "ascend"
    own = PodDraft(runtime_class="mine")
    backend.mutate(ContainerDraft(limits=limits("Ascend910B3", 1)), own)
    assert own.runtime_class == "mine"


@pytest.mark.parametrize("asked", [limits("Ascend910B3", "0.5"), limits("Ascend910B3", 0)])
def test_a_count_that_asks_for_no_chip_changes_nothing(asked: dict[str, Any]) -> None:
    container = ContainerDraft(limits=dict(asked))
    assert vendor().mutate(container, PodDraft()) is True
    assert container == ContainerDraft(limits=asked)


def test_memory_that_cannot_be_read_is_left_to_the_request() -> None:
    container = ContainerDraft(limits=limits("Ascend910B3", 1, "16Gi"))
    assert vendor().mutate(container, PodDraft()) is True
    assert container.limits["huawei.com/Ascend910B3-memory"] == "16Gi"
    assert isinstance(vendor().request(container), BadRequest)


def test_a_chip_without_a_name_for_memory_is_not_given_any() -> None:
    container = ContainerDraft(limits=limits("Ascend910B3", 1))
    assert vendor(resource_memory_name="").mutate(container, PodDraft()) is True
    assert container == ContainerDraft(limits=limits("Ascend910B3", 1))


# -- requests


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 16384, None), (1, 16384, 0, 0)),
        ((1, None, None), (1, 0, 100, 0)),
        ((2, 65536, None), (2, 65536, 0, 0)),
        ((1, 2000, 30), (1, 2000, 0, 30)),
    ],
)
def test_a_request_is_what_is_written(asked: tuple[Any, Any, Any], expected: tuple[int, int, int, int]) -> None:
    count, memory, percent, cores = expected
    wanted = Request("Ascend910B3", count, memory, percent, cores)
    assert vendor().request(Resources(limits=limits("Ascend910B3", *asked))) == wanted
    assert vendor().request(Resources(requests=limits("Ascend910B3", *asked))) == wanted


def test_larger_units_of_memory_are_multiplied() -> None:
    asked = vendor(memory_factor=1024).request(Resources(limits=limits("Ascend910B3", 1, 16)))
    assert isinstance(asked, Request)
    assert asked.memory == 16384


def test_a_container_that_names_no_chip_asks_for_nothing() -> None:
    assert vendor().request(Resources(limits=limits("Ascend310P", 1))) is None
    assert vendor().request(Resources(limits=limits("Ascend910B3", 0))) is None


@pytest.mark.parametrize(
    "asked",
    [
        limits("Ascend910C", -1),
        limits("Ascend910C", "1500m"),
        limits("Ascend910C", 2, "16Gi"),
        limits("Ascend910C", 2, -1),
        limits("Ascend910C", 2, 16384, "x"),
        limits("Ascend910C", 3),
    ],
)
def test_a_request_that_cannot_be_honoured_is_refused_with_advice(asked: dict[str, Any]) -> None:
    answer = vendor("Ascend910C").request(Resources(limits=asked))
    assert isinstance(answer, BadRequest)
    assert "write" in answer.advice


# -- nodes


def test_cards_are_read_from_the_registration_and_count_100_cores() -> None:
    text = (
        '[{"id":"U0","index":1,"count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true,'
        '"custominfo":{"NetworkID":3}}]'
    )
    custom = {"NetworkID": 3}
    expected = Device("U0", "Ascend910B3", 1, 4, 65536, 100, "Ascend910B3", custom=custom)
    assert devices(vendor(), node(annotations={"hami.io/node-register-Ascend910B3": text})) == (expected,)


# -- placement


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        (card(0), {}, ["U0"]),
        (card(0, healthy=False), {}, "1/1 CardNotHealth"),
        (card(0), {"annotations": {"hami.io/use-Ascend910B3-uuid": "U1"}}, "1/1 CardUuidMismatch"),
        (card(0), {"annotations": {"hami.io/no-use-Ascend910B3-uuid": "U0"}}, "1/1 CardUuidMismatch"),
        (card(0, used=10), {}, "1/1 CardTimeSlicingExhausted"),
        (card(0, used=1), {"policy": "mutex", "memory": 16384}, "1/1 ExclusiveDeviceAllocateConflict"),
        (card(0), {"room": QuotaRoom(memory=100)}, "1/1 ResourceQuotaNotFit"),
        (card(0, used=1, memory=16384), {}, "1/1 CardInsufficientMemory"),
        (card(0, used=1, memory=16384), {"memory": 16384}, ["U0"]),
        (card(0, used=1, memory=50000), {"memory": 2000}, "1/1 CardInsufficientMemory"),
        (card(0), {"memory": 70000}, "1/1 CardInsufficientMemory"),
    ],
)
def test_one_card_is_accepted_or_refused_for_its_first_reason(
    there: Card, asked: dict[str, Any], expected: list[str] | str
) -> None:
    assert chosen(fit(vendor(), [there], **asked)) == expected


def test_a_hard_split_is_granted_as_the_chip_is_cut() -> None:
    assert fit(vendor(), [card(0)], memory=2000) == (Grant(uuid="U0", vendor="Ascend910B3", memory=16384, cores=0),)


@pytest.mark.parametrize(
    ("everywhere", "said", "fits"),
    [(False, None, False), (True, None, True), (False, "true", True), (True, "false", False), (False, "True", False)],
)
def test_soft_split_needs_a_node_that_supports_it(everywhere: bool, said: str | None, fits: bool) -> None:
    traits = {} if said is None else {"hami-vnpu-core": said}
    cards = [card(0), card(1)]
    answer = fit(vendor(soft_split=everywhere), cards, memory=2000, cores=30, annotations=SOFT, traits=traits)
    assert chosen(answer) == (["U0"] if fits else "2/2 ModeNotFit")


def test_soft_split_grants_exactly_what_was_asked_and_counts_cores() -> None:
    backend = vendor(soft_split=True)
    assert fit(backend, [card(0)], memory=2000, cores=30, annotations=SOFT) == (
        Grant(uuid="U0", vendor="Ascend910B3", memory=2000, cores=30),
    )
    busy = [card(0, used=1, cores=80)]
    assert chosen(fit(backend, busy, memory=2000, cores=30, annotations=SOFT)) == "1/1 CardInsufficientCore"


@pytest.mark.parametrize(
    ("word", "networks", "count", "expected"),
    [
        ("Ascend910B3", [0, 1, 1, 0, 1], 1, [0]),
        ("Ascend910B3", [0, 1, 1, 0, 1], 2, [1, 2]),
        ("Ascend910B3", [0, 1, 1, 0, 1], 4, [1, 2, 4, 0]),
        ("Ascend910B3", [5, 2, 5, 2], 2, [1, 3]),
        ("Ascend910B3", [0, 1, 1.0, None], 2, [0, 1]),
        ("Ascend910B3", [0, 1, 1.5, 1], 2, [0, 1]),
        ("Ascend910B3", [0, 1, True, 1], 2, [0, 1]),
        ("Ascend910B3", [0, 1, "1", 1], 2, [0, 1]),
        ("Ascend910B3", [0, 1, float("inf"), 1], 2, [0, 1]),
        ("Ascend310P", [0, 1, 1], 2, [0, 1]),
        ("Ascend910C", [0, 0, 1, 1, 1, 1], 4, [2, 3, 4, 5]),
    ],
)
def test_several_chips_come_from_the_network_with_most_of_them(
    word: str, networks: list[Any], count: int, expected: list[int]
) -> None:
    cards = [card(i, network=network, vendor=word) for i, network in enumerate(networks)]
    assert chosen(fit(vendor(word), cards, count=count)) == [f"U{i}" for i in expected]


def test_cards_that_do_not_fit_do_not_make_a_network_larger() -> None:
    cards = [card(0, network=1, healthy=False), card(1, network=1), card(2, network=2), card(3, network=2)]
    assert chosen(fit(vendor(), cards, count=2)) == ["U2", "U3"]


@pytest.mark.parametrize(
    ("indexes", "count", "expected"),
    [
        ([0, 1, 2, 3], 2, ["U0", "U1"]),
        ([0, 3, 2, 1], 2, ["U0", "U1"]),
        ([1, 2, 3, 4], 2, ["U2", "U3"]),
        ([3, 0, 1, 2], 4, ["U3", "U2", "U0", "U1"]),
        ([0, 2, 4], 2, "3/3 AllocatedCardsInsufficientRequest"),
        ([0, 1, 2, 5], 4, "4/4 AllocatedCardsInsufficientRequest"),
        ([1], 1, ["U1"]),
    ],
)
def test_chips_of_a_super_pod_are_given_as_whole_modules(
    indexes: list[int], count: int, expected: list[str] | str
) -> None:
    cards = [card(index) for index in indexes]
    assert chosen(fit(vendor("Ascend910C"), cards, count=count)) == expected


def test_cards_with_the_same_index_are_no_module() -> None:
    cards = [card(0), card(1)]
    twin = Card(Device(uuid="twin", vendor="Ascend910C", index=0, slots=10, memory=65536))
    assert chosen(fit(vendor("Ascend910C"), [twin, card(0)], count=2)) == "2/2 AllocatedCardsInsufficientRequest"
    assert chosen(fit(vendor("Ascend910C"), [*cards, twin], count=2)) == ["U0", "U1"]


def test_half_a_module_is_reported_beside_the_refused_half() -> None:
    answer = fit(vendor("Ascend910C"), [card(0), card(1, healthy=False)], count=2)
    assert isinstance(answer, Misfit)
    assert answer.text == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardNotHealth"
    assert {c.uuid: c.reason for c in answer.cards} == {"U0": Reason.TOO_FEW_CARDS, "U1": Reason.CARD_NOT_HEALTHY}


def test_a_numa_bound_pod_gets_modules_of_one_numa_node() -> None:
    cards = [card(0, numa=0), card(1, numa=1), card(2, numa=1), card(3, numa=1)]
    assert chosen(fit(vendor("Ascend910C"), cards, count=2, numa_bind=True)) == ["U2", "U3"]
    assert chosen(fit(vendor("Ascend910C"), cards, count=2)) == ["U0", "U1"]


def test_an_odd_number_fits_without_a_super_pod() -> None:
    cards = [card(i) for i in (0, 2, 4)]
    assert chosen(fit(vendor("Ascend910C", super_pod=False), cards, count=3)) == ["U0", "U2", "U4"]


# -- node score


@pytest.mark.parametrize(
    ("word", "networks", "containers", "expected"),
    [
        ("Ascend910B3", [0, 0, 1, 1], [[0, 1]], 10.0),
        ("Ascend910B3", [0, 0, 1, 1], [[0, 2]], 5.0),
        ("Ascend910B3", [0, 0, 1, 1], [[0, 1], [], [0, 1, 2]], 10 + 20 / 3),
        ("Ascend910B3", [0, None, 1, 1], [[2, 3], [0, 1]], 0.0),
        ("Ascend910B3", [0, 0], [[]], 0.0),
        ("Ascend310P", [0, 0, 1, 1], [[0, 1]], 0.0),
    ],
)
def test_a_node_scores_by_how_much_stays_in_one_network(
    word: str, networks: list[Any], containers: list[list[int]], expected: float
) -> None:
    backend = vendor(word)
    cards = [card(i, network=network, vendor=word) for i, network in enumerate(networks)]
    grants = tuple(tuple(Grant(f"U{i}", word, 1, 0) for i in container) for container in containers)
    node_view = NodeInfo(NodeFacts("n1"), cards)
    assert backend.node_score(node_view, PodRequest("u", "ns", "p", ()), grants) == pytest.approx(expected)
    assert backend.scores_nodes is word.startswith("Ascend910")


# -- binding


@pytest.mark.parametrize(
    ("annotations", "slices", "runtime"),
    [
        ({}, [("U1", 16384, 0)], '[{"UUID":"U1","temp":"vir05_1c_16g","memory":16384}]'),
        ({}, [("U1", 65536, 0), None, ("U2", 65536, 0)], '[{"UUID":"U1","memory":65536},{"UUID":"U2","memory":65536}]'),
        (SOFT, [("U1", 2000, 30)], '[{"UUID":"U1","memory":2000,"core":30}]'),
        ({}, [("U1", 90000, 0)], '[{"UUID":"U1","memory":90000}]'),
    ],
)
def test_binding_writes_the_slices_for_hami_and_for_the_runtime(
    annotations: dict[str, str], slices: list[tuple[str, int, int] | None], runtime: str
) -> None:
    backend = vendor()
    constraint = backend.constraint(annotations)
    constraints = ((backend.key, constraint),) if annotations else ()
    pod = PodRequest("u", "ns", "p", (), constraints=constraints)
    grants = tuple(() if each is None else (Grant(each[0], backend.key, *each[1:]),) for each in slices)
    written = "".join(";" if each is None else f"{each[0]},Ascend910B3,{each[1]},{each[2]}:;" for each in slices)
    assert backend.annotations(Bound(pod=pod, node="n1", grants=grants, now=1700000000.9)) == {
        "hami.io/Ascend910B3-devices-to-allocate": written,
        "hami.io/Ascend910B3-devices-allocated": written,
        "predicate-time": "1700000000",
        "huawei.com/Ascend910B3": runtime,
    }
