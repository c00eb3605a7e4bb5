from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.node_info import Card
from tessera.core.model.requests import UNCONSTRAINED, PodRequest, Request
from tessera.vendors.base import Bound, NodeProblem, SharedSection, Switches, Vendor
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
from tessera.wire.objects import Metadata, Node, NodeStatus

GPU = "iluvatar.ai/BI-V100-vgpu"
MEM = "iluvatar.ai/BI-V100.vMem"
CORES = "iluvatar.ai/BI-V100.vCore"
OLD_SECTION = SharedSection(
    resource_count_name="iluvatar.ai/vgpu",
    resource_memory_name="iluvatar.ai/vcuda-memory",
    resource_core_name="iluvatar.ai/vcuda-core",
)
POD = PodRequest(uid="u", namespace="ns", name="p", containers=())
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


def bound(*grants: Grants, now: float = 0.0) -> Bound:
    return Bound(pod=POD, node="n1", grants=grants, now=now)


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
    request = Request("BI-V100", 2, percent=100, cores=200)
    ask = Ask(request=request, pod=POD, constraint=UNCONSTRAINED, node=NodeFacts("n1"), cards=cards)
    grants = chip().fit(ask)
    assert isinstance(grants, tuple)
    assert chip().annotations(bound(grants)) == dict.fromkeys(
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
    cards = vendor.devices(Node(metadata=Metadata(name="n1", annotations={register: text})))
    assert cards == (Device("U0", "BI-V100", slots=100, memory=32768, model="Iluvatar-BI-V100", mode="hami-core"),)
    assert vendor.devices(Node()) == ()
    problem = vendor.devices(Node(metadata=Metadata(annotations={register: "?"})))
    assert isinstance(problem, NodeProblem)


def test_a_pod_says_which_cards_of_a_chip_it_accepts() -> None:
    constraint = chip().constraint({"hami.io/use-BI-V100-uuid": "a,b", "hami.io/no-use-BI-V100-uuid": "c"})
    assert (constraint.use_uuids, constraint.avoid_uuids) == (("a", "b"), ("c",))


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
    node = Node(metadata=Metadata(name="n1"), status=NodeStatus(capacity=capacity))
    assert old().devices(node) == tuple(
        Device(f"n1-iluvatar-{i}", "Iluvatar", index=i, slots=100, memory=32768, model="Iluvatar") for i in range(2)
    )


def test_old_agents_read_indexes_by_container() -> None:
    grants = tuple(Grant(f"n1-iluvatar-{i}", "Iluvatar", 256, 100, index=i) for i in range(2))
    text = ";n1-iluvatar-0,Iluvatar,256,100:n1-iluvatar-1,Iluvatar,256,100:;"
    assert old().annotations(bound((), grants, now=1.5)) == {
        "hami.io/iluvatar-vgpu-devices-to-allocate": text,
        "hami.io/iluvatar-vgpu-devices-allocated": text,
        "iluvatar.ai/gpu-assigned": "false",
        "iluvatar.ai/predicate-time": "1500000000",
        "iluvatar.ai/predicate-gpu-idx-1": "0,1",
    }


def test_old_lists_of_uuids() -> None:
    constraint = old().constraint({"iluvatar.ai/use-gpuuuid": "a", "iluvatar.ai/nouse-gpuuuid": "b"})
    assert (constraint.use_uuids, constraint.avoid_uuids) == (("a",), ("b",))
