from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from tessera.core.model.devices import Device
from tessera.core.model.grants import Grant
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import SharedSection, Switches, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, PodDraft, Resources
from tessera.vendors.iluvatar import (
    CHART,
    FAMILY,
    OLD_FAMILY,
    Iluvatar,
    IluvatarChip,
    IluvatarChips,
    OldIluvatar,
)
from tests.support.vendor_cases import NOW_NS, VendorNode, devices, node

GPU = "iluvatar.ai/BI-V100-vgpu"
MEM = "iluvatar.ai/BI-V100.vMem"
CORES = "iluvatar.ai/BI-V100.vCore"
OLD_SECTION = SharedSection(
    resource_count_name="iluvatar.ai/vgpu",
    resource_memory_name="iluvatar.ai/vcuda-memory",
    resource_core_name="iluvatar.ai/vcuda-core",
)
CHIPS, OLD = FAMILY, OLD_FAMILY


def chip() -> IluvatarChips:
    return IluvatarChips(next(section for section in CHART if section.chip_name == "BI-V100"))


def old() -> OldIluvatar:
    return OldIluvatar(OLD_SECTION.names)


def admitted(vendor: Iluvatar, draft: ContainerDraft) -> bool:
    verdict = vendor.mutate(draft, PodDraft())
    once = copy.deepcopy(draft)
    assert vendor.mutate(draft, PodDraft()) == verdict
    assert draft == once, "a second mutation must change nothing"
    return verdict is True


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1, MEM: 10, CORES: 50}, Request("BI-V100", 1, memory=2560, cores=50)),
        ({GPU: 2}, Request("BI-V100", 2, percent=100, cores=200)),
        ({GPU: 2, CORES: 30}, Request("BI-V100", 2, percent=100, cores=200)),
        ({GPU: 1}, Request("BI-V100", 1, percent=100, cores=0)),
        ({GPU: 0}, None),
    ],
)
def test_a_request_after_admission(limits: dict[str, Any], expected: Request | None) -> None:
    draft = ContainerDraft(limits=dict(limits), name="main")
    assert admitted(chip(), draft)
    assert chip().request(draft) == expected


def test_several_cards_are_granted_whole() -> None:
    cards = [Card(Device(f"U{i}", "BI-V100", slots=100, memory=32768)) for i in range(2)]
    world = VendorNode(chip(), cards)
    assert world.written(world.grants(**{GPU: 2, CORES: 200})) == dict.fromkeys(
        ("hami.io/BI-V100-devices-to-allocate", "hami.io/BI-V100-devices-allocated"),
        "U0,BI-V100,32768,100:U1,BI-V100,32768,100:;",
    )


@pytest.mark.parametrize(
    ("limits", "resource"),
    [
        ({GPU: "1500m"}, GPU),
        ({GPU: -2}, GPU),
        ({GPU: 10**30}, GPU),
        ({GPU: 10**9}, CORES),
        ({GPU: 1, MEM: "2Gi"}, MEM),
        ({GPU: 1, CORES: -1}, CORES),
    ],
)
def test_an_amount_that_cannot_be_honoured(limits: dict[str, Any], resource: str) -> None:
    draft = ContainerDraft(limits=dict(limits))
    assert admitted(chip(), draft)
    answer = chip().request(draft)
    assert isinstance(answer, BadRequest)
    assert answer.resource == resource


def test_cores_of_several_cards_replace_the_copied_requests_too() -> None:
    draft = ContainerDraft(limits={GPU: "2", CORES: "30"}, requests={GPU: "2", CORES: "30"})
    assert admitted(chip(), draft)
    assert draft.limits[CORES] == draft.requests[CORES] == "200"


@pytest.mark.parametrize(
    ("limits", "env", "expected"),
    [
        ({GPU: 1}, {}, {"SOL_CONTINER_NAME": "main"}),
        ({GPU: 1}, {"SOL_CONTINER_NAME": "mine"}, {"SOL_CONTINER_NAME": "mine"}),
        ({}, {}, {}),
    ],
)
def test_a_container_with_a_card_learns_its_name(
    limits: dict[str, Any], env: dict[str, str], expected: dict[str, str]
) -> None:
    draft = ContainerDraft(limits=limits, name="main", env=env)
    assert admitted(chip(), draft) is bool(limits)
    assert draft.env == expected


def test_admission_looks_at_limits_only() -> None:
    assert not admitted(chip(), ContainerDraft(requests={GPU: 1}))


def test_a_chip_without_names_matches_nothing() -> None:
    vendor = IluvatarChips(IluvatarChip(chip_name="X", resource_count_name=GPU))
    draft = ContainerDraft(limits={GPU: 2})
    assert admitted(vendor, draft)
    assert draft.limits == {GPU: 2}


def test_cards_of_a_chip_are_registered_under_its_own_key() -> None:
    text = "U0,100,32768,100,Iluvatar-BI-V100,0,true:"
    vendor = chip()
    register = "hami.io/node-BI-V100-register"
    assert devices(vendor, node(annotations={register: text})) == (
        Device("U0", "BI-V100", slots=100, memory=32768, model="Iluvatar-BI-V100", mode="hami-core"),
    )


def test_chips_exist_only_when_switched_on() -> None:
    assert CHIPS.build(CHIPS.chart, Switches()) == []
    vendors: list[Vendor] = CHIPS.build(CHIPS.chart, Switches(iluvatar=True))
    assert [vendor.key for vendor in vendors] == ["MR-V100", "MR-V50", "BI-V150", "BI-V100"]
    assert all(vendor.arrays_exact and vendor.keys.lock == "hami.io/mutex.lock" for vendor in vendors)
    assert vendors[-1].names.all == (GPU, MEM, CORES)
    assert (vendors[-1].quota_memory, vendors[-1].quota_cores, vendors[-1].quota_factor) == (MEM, CORES, 256)


def test_a_chip_is_known_by_its_common_word_or_else_by_its_name() -> None:
    chips = msgspec.convert([{"chipName": "A", "commonWord": "B"}, {"chipName": "C"}], CHIPS.schema)
    assert [vendor.key for vendor in CHIPS.build(chips, Switches(iluvatar=True))] == ["B", "C"]


def test_a_chip_without_any_name_stops_the_start() -> None:
    with pytest.raises(ValueError, match="commonWord or a chipName"):
        CHIPS.build((IluvatarChip(),), Switches(iluvatar=True))


# -- HAMi v2.4 to v2.7


def test_the_old_vendor_exists_only_where_it_is_configured() -> None:
    assert OLD.build(OLD.chart, Switches(iluvatar=True)) == []
    (vendor,) = OLD.build(OLD_SECTION, Switches())
    assert (vendor.key, vendor.keys.lock) == ("Iluvatar", "")


def test_the_old_vendor_reads_requests_the_same_way() -> None:
    draft = ContainerDraft(limits={"iluvatar.ai/vgpu": 2, "iluvatar.ai/vcuda-memory": 4})
    assert admitted(old(), draft)
    assert not draft.env
    assert old().request(draft) == Request("Iluvatar", 2, memory=1024, cores=200)
    assert old().request(Resources()) is None


def test_old_cards_follow_from_the_capacity() -> None:
    capacity: dict[str, Any] = {"iluvatar.ai/vcuda-core": "200", "iluvatar.ai/vcuda-memory": "256"}
    assert devices(old(), node(capacity=capacity)) == tuple(
        Device(f"n1-iluvatar-{i}", "Iluvatar", index=i, slots=100, memory=32768, model="Iluvatar") for i in range(2)
    )


def test_old_agents_read_indexes_by_container() -> None:
    grants = tuple(Grant(f"n1-iluvatar-{i}", "Iluvatar", 256, 100, index=i) for i in range(2))
    text = ";n1-iluvatar-0,Iluvatar,256,100:n1-iluvatar-1,Iluvatar,256,100:;"
    assert VendorNode(old(), []).written((), grants) == {
        "hami.io/iluvatar-vgpu-devices-to-allocate": text,
        "hami.io/iluvatar-vgpu-devices-allocated": text,
        "iluvatar.ai/gpu-assigned": "false",
        "iluvatar.ai/predicate-time": NOW_NS,
        "iluvatar.ai/predicate-gpu-idx-1": "0,1",
    }
