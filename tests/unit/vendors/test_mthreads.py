from __future__ import annotations

import copy
from typing import Any

import pytest

from tessera.core.fit.device_rules import Ask
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Grants, Use
from tessera.core.model.misfits import Misfit, Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import UNCONSTRAINED, PodRequest, Request
from tessera.vendors.base import ResourceNames
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.mthreads import CHART, MThreads
from tests.support.vendor_cases import NOW_NS, VendorNode, devices, node

GPU = "mthreads.com/vgpu"
MEM = "mthreads.com/sgpu-memory"
CORES = "mthreads.com/sgpu-core"
POD = PodRequest(uid="u", namespace="ns", name="p", containers=())
SLICES_TEXT = "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 96]"


@pytest.fixture
def vendor() -> MThreads:
    return MThreads(CHART.names)


def cards(vendor: MThreads, count: int) -> list[Card]:
    return [Card(device) for device in devices(vendor, node(capacity={CORES: 16 * count, MEM: 96 * count}))]


def ask(request: Request, on: list[Card], *earlier: Grants) -> Ask:
    uuids = frozenset(grant.uuid for grants in earlier for grant in grants)
    return Ask(request=request, pod=POD, constraint=UNCONSTRAINED, node=NodeFacts("n1"), cards=on, earlier=uuids)


def admitted(vendor: MThreads, draft: ContainerDraft) -> tuple[bool | Denied, PodDraft]:
    pod = PodDraft(containers=[draft])
    verdict = vendor.mutate(draft, pod)
    once = copy.deepcopy(pod)
    assert vendor.mutate(draft, pod) == verdict
    assert pod == once, "a second mutation must change nothing"
    return verdict, pod


@pytest.mark.parametrize(
    ("limits", "completed", "cards_annotation", "expected"),
    [
        ({GPU: 1}, {CORES: "16", MEM: "96"}, None, Request("Mthreads", 1, memory=49152, cores=16)),
        ({GPU: 1, MEM: 32}, {MEM: 32}, None, Request("Mthreads", 1, memory=16384, cores=0)),
        ({GPU: 1, MEM: "2", CORES: 4}, {MEM: "2", CORES: 4}, None, Request("Mthreads", 1, memory=1024, cores=4)),
        ({GPU: 2}, {CORES: "32", MEM: "192"}, "2", Request("Mthreads", 2, memory=49152, cores=16)),
        ({GPU: 3, MEM: 7}, {CORES: "48", MEM: "288"}, "3", Request("Mthreads", 3, memory=49152, cores=16)),
    ],
)
def test_a_request_after_admission(
    vendor: MThreads,
    limits: dict[str, Any],
    completed: dict[str, Any],
    cards_annotation: str | None,
    expected: Request,
) -> None:
    draft = ContainerDraft(limits=dict(limits))
    verdict, pod = admitted(vendor, draft)
    assert verdict is True
    assert draft.limits == {GPU: limits[GPU], **completed}
    assert pod.annotations.get("mthreads.com/request-gpu-num") == cards_annotation
    assert vendor.request(draft) == expected


def test_whole_cards_replace_the_copied_requests_too(vendor: MThreads) -> None:
    draft = ContainerDraft(limits={GPU: "2", MEM: "8"}, requests={GPU: "2", MEM: "8"})
    admitted(vendor, draft)
    assert draft.limits[MEM] == draft.requests[MEM] == "192"


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({GPU: 0}, f"{GPU} must be greater than 0"),
        ({GPU: "-3"}, f"{GPU} must be greater than 0"),
        ({GPU: 1, MEM: 3}, SLICES_TEXT),
        ({GPU: 1, MEM: "1500m"}, SLICES_TEXT),
        ({GPU: 1, MEM: -2}, SLICES_TEXT),
    ],
)
def test_a_pod_that_is_denied(vendor: MThreads, limits: dict[str, Any], text: str) -> None:
    verdict, _ = admitted(vendor, ContainerDraft(limits=dict(limits)))
    assert verdict == Denied(text)


def test_a_container_without_a_card_is_left_alone(vendor: MThreads) -> None:
    draft = ContainerDraft(limits={MEM: 3})
    verdict, _ = admitted(vendor, draft)
    assert verdict is False
    assert draft.limits == {MEM: 3}
    assert vendor.request(draft) is None


def test_a_count_may_stand_in_the_requests(vendor: MThreads) -> None:
    verdict, _ = admitted(vendor, ContainerDraft(requests={GPU: 1}))
    assert verdict is True


@pytest.mark.parametrize(
    ("limits", "resource"),
    [
        ({GPU: "1500m"}, GPU),
        ({GPU: 10**9}, MEM),
        ({GPU: 1, MEM: "4Gi"}, MEM),
        ({GPU: 1, MEM: 2, CORES: -1}, CORES),
    ],
)
def test_an_amount_that_cannot_be_honoured(vendor: MThreads, limits: dict[str, Any], resource: str) -> None:
    draft = ContainerDraft(limits=dict(limits))
    vendor.mutate(draft, PodDraft())
    answer = vendor.request(draft)
    assert isinstance(answer, BadRequest)
    assert answer.resource == resource


def test_amounts_are_divided_among_the_cards(vendor: MThreads) -> None:
    resources = Resources(limits={GPU: 3, MEM: 10, CORES: 8})
    assert vendor.request(resources) == Request("Mthreads", 3, memory=1706, cores=2)
    assert vendor.request(Resources(limits={GPU: 2})) == Request("Mthreads", 2, percent=100, cores=0)
    assert vendor.request(Resources(limits={GPU: 0})) is None


def test_cards_follow_from_the_capacity(vendor: MThreads) -> None:
    assert devices(vendor, node(capacity={CORES: "20", MEM: "192"})) == tuple(
        Device(f"n1-mthreads-{i}", "Mthreads", index=i, slots=100, memory=78643, cores=16, model="Mthreads")
        for i in range(2)
    )


def test_later_containers_share_the_cards_of_the_first(vendor: MThreads) -> None:
    half = Request("Mthreads", 1, memory=16384, cores=8)
    on = cards(vendor, 3)
    first = vendor.fit(ask(half, [on[1]]))
    assert isinstance(first, tuple)
    on[1].take(vendor.charge(on[1].device, first[0]))
    second = vendor.fit(ask(half, on, (), first))
    assert isinstance(second, tuple)
    assert [grant.uuid for grant in second] == ["n1-mthreads-1"]


def test_a_later_container_is_refused_other_cards(vendor: MThreads) -> None:
    on = cards(vendor, 2)
    on[0].take(Use(slots=1, memory=49152, cores=16))
    earlier = (Grant("n1-mthreads-0", "Mthreads", 49152, 16),)
    misfit = vendor.fit(ask(Request("Mthreads", 1, memory=1024), on, earlier))
    assert isinstance(misfit, Misfit)
    assert misfit.counts == ((Reason.CARD_INSUFFICIENT_MEMORY, 1), (Reason.CUSTOM_RULE, 1))


def test_a_whole_card_is_refused_while_another_pod_shares_it(vendor: MThreads) -> None:
    (card,) = cards(vendor, 1)
    card.take(Use(slots=1, memory=1024, cores=4))
    misfit = vendor.fit(ask(Request("Mthreads", 1, memory=1024, cores=16), [card]))
    assert isinstance(misfit, Misfit)
    assert misfit.text == "1/1 CardInsufficientCore"


def test_the_agent_of_mthreads_learns_the_last_containers_cards(vendor: MThreads) -> None:
    both = tuple(Grant(f"n1-mthreads-{i}", "Mthreads", 49152, 16, index=i) for i in range(2))
    first, second = (f"n1-mthreads-{i},Mthreads,49152,16:" for i in range(2))
    assert VendorNode(vendor, []).written(both[:1], both, ()) == {
        "hami.io/mthreads-vgpu-devices-allocated": f"{first};{first}{second};;",
        "mthreads.com/gpu-index": "0,1",
        "mthreads.com/predicate-time": NOW_NS,
        "mthreads.com/predicate-node": "n1",
    }


def test_names_that_are_not_configured_are_not_filled_in() -> None:
    vendor = MThreads(ResourceNames(count=GPU))
    draft = ContainerDraft(limits={GPU: 2})
    assert vendor.mutate(draft, PodDraft()) is True
    assert draft.limits == {GPU: 2}
