from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from tessera.core.fit.device_rules import QuotaRoom
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card, NodeInfo, Tenant
from tessera.core.model.requests import UNCONSTRAINED, Constraint, ContainerRequest, PodRequest, Request
from tessera.vendors.base import Bound, NodeProblem, ResourceNames
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.metax import APP_CLASS, QOS, TOPOLOGY_AWARE, MetaxSgpu
from tests.support.vendor_cases import VendorNode, chosen, devices, node

NAMES = ResourceNames(count="metax-tech.com/sgpu", memory="metax-tech.com/vmemory", cores="metax-tech.com/vcore")
VENDOR = MetaxSgpu(NAMES)
KEY = "Metax-SGPU"
REGISTER = "metax-tech.com/node-gpu-devices"


def limits(count: Any = None, memory: Any = None, cores: Any = None) -> dict[str, Any]:
    pairs = {NAMES.count: count, NAMES.memory: memory, NAMES.cores: cores}
    return {name: value for name, value in pairs.items() if value is not None}


def card(
    uuid: str,
    *tenants: dict[str, str],
    memory: int = 0,
    cores: int = 0,
    qos: str = "",
    zone: int = 0,
    numa: int = 0,
    **device: Any,
) -> Card:
    """A card of 64 GiB that is held by one pod for every settings dictionary."""
    custom = {"QosPolicy": qos, "LinkZone": zone}
    facts = {"slots": 16, "memory": 65536, "cores": 100, "model": KEY, **device}
    return Card(
        Device(uuid=uuid, vendor=KEY, numa=numa, custom=custom, **facts),
        used=len(tenants),
        used_memory=memory,
        used_cores=cores,
        tenants=tuple(Tenant(f"t{i}", tuple(sorted(s.items()))) for i, s in enumerate(tenants)),
    )


def request(count: int = 1, memory: int = 4096, cores: int = 20) -> Request:
    return Request(vendor=KEY, count=count, memory=memory, percent=0 if memory else 100, cores=cores)


def pod(asked: Request, settings: dict[str, str] | None = None, **fields: Any) -> PodRequest:
    constraint = VENDOR.constraint(settings or {})
    constraints = ((KEY, constraint),) if constraint != UNCONSTRAINED else ()
    return PodRequest("u", "ns", "p", (ContainerRequest("c", requests=(asked,)),), constraints=constraints, **fields)


def fit(
    cards: list[Card], asked: Request | None = None, settings: dict[str, str] | None = None, **world: Any
) -> Grants | Misfit:
    return VendorNode(VENDOR, cards, annotations=settings, **world).fit(asked or request())


# -- admission


@pytest.mark.parametrize(
    ("annotations", "after"),
    [
        ({}, {QOS: "best-effort"}),
        ({QOS: "fixed-share"}, {QOS: "fixed-share"}),
        ({QOS: "burst-share"}, {QOS: "burst-share"}),
        ({APP_CLASS: "offline"}, {APP_CLASS: "offline", QOS: "best-effort"}),
        ({APP_CLASS: "online"}, {APP_CLASS: "online"}),
        ({APP_CLASS: "online", QOS: "whatever"}, {APP_CLASS: "online", QOS: "whatever"}),
    ],
)
def test_the_webhook_completes_the_policy(annotations: dict[str, str], after: dict[str, str]) -> None:
    pod_draft = PodDraft(annotations=dict(annotations))
    container = ContainerDraft(limits=limits(1, 4, 50))
    assert VENDOR.mutate(container, pod_draft) is True
    assert pod_draft.annotations == after
    once = deepcopy((container, pod_draft))
    assert VENDOR.mutate(container, pod_draft) is True
    assert (container, pod_draft) == once


@pytest.mark.parametrize(
    ("annotations", "count", "text"),
    [
        ({APP_CLASS: "batch"}, 1, "metax-tech.com/sgpu-app-class must be set one of [online, offline]"),
        ({APP_CLASS: ""}, 1, "metax-tech.com/sgpu-app-class must be set one of [online, offline]"),
        ({APP_CLASS: "online"}, 2, "app-class pod must request single device"),
        ({APP_CLASS: "offline"}, 2, "app-class pod must request single device"),
        ({QOS: "best"}, 1, "metax-tech.com/sgpu-qos-policy must be set one of [best-effort, fixed-share, burst-share]"),
        (
            {APP_CLASS: "offline", QOS: ""},
            1,
            "metax-tech.com/sgpu-qos-policy must be set one of [best-effort, fixed-share, burst-share]",
        ),
    ],
)
def test_the_webhook_refuses_unknown_classes_and_policies(annotations: dict[str, str], count: int, text: str) -> None:
    assert VENDOR.mutate(ContainerDraft(limits=limits(count)), PodDraft(annotations=annotations)) == Denied(text)


def test_a_container_without_slices_is_left_alone() -> None:
    pod_draft = PodDraft(annotations={APP_CLASS: "nonsense"})
    assert VENDOR.mutate(ContainerDraft(limits={"cpu": 1}), pod_draft) is False
    assert VENDOR.mutate(ContainerDraft(requests=limits(1)), pod_draft) is False
    assert pod_draft == PodDraft(annotations={APP_CLASS: "nonsense"})


def test_a_count_that_cannot_be_read_is_left_to_the_request() -> None:
    container = ContainerDraft(limits=limits("1500m"))
    assert VENDOR.mutate(container, PodDraft()) is True
    assert isinstance(VENDOR.request(container), BadRequest)


def test_a_user_who_asks_for_memory_only_is_told_that_the_card_is_not_shared() -> None:
    pod_draft = PodDraft()
    VENDOR.mutate(ContainerDraft(limits=limits(1, 4)), pod_draft)
    assert pod_draft.warnings == [
        "a container without metax-tech.com/vcore has its card alone, whatever memory it asks for"
    ]


# -- requests


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (limits(1, 4, 60), request(1, 4096, 60)),
        (limits(1, "4", 60), request(1, 4096, 60)),
        (limits(1, "4Gi", 60), request(1, 4096, 60)),
        (limits(1, "4Gi"), request(1, 4096, 100)),
        (limits(1, "4096Mi", 0), request(1, 4096, 0)),
        (limits(1, "4G", 10), request(1, 3814, 10)),
        (limits(2), request(2, 0, 100)),
        (limits(2, 0, 10), request(2, 0, 10)),
        (limits(1, 4.0, 10), request(1, 4096, 10)),
        (limits(0, "nonsense"), None),
        (limits(None, 4, 60), None),
    ],
)
def test_plain_memory_is_gib_and_units_are_bytes(asked: dict[str, Any], expected: Request | None) -> None:
    assert VENDOR.request(Resources(limits=asked)) == expected
    assert VENDOR.request(Resources(requests=asked)) is None


@pytest.mark.parametrize(
    ("asked", "resource"),
    [
        (limits(-1), NAMES.count),
        (limits("0.5"), NAMES.count),
        (limits(1, -4), NAMES.memory),
        (limits(1, "500m"), NAMES.memory),
        (limits(1, "1Ki"), NAMES.memory),
        (limits(1, "2k"), NAMES.memory),
        (limits(1, "much"), NAMES.memory),
        (limits(1, 2**40), NAMES.memory),
        (limits(1, "9" * 200), NAMES.memory),
        (limits(1, "１"), NAMES.memory),
        (limits(1, 4, -1), NAMES.cores),
        (limits(1, 4, "half"), NAMES.cores),
    ],
)
def test_an_amount_that_cannot_be_honoured_is_refused_with_advice(asked: dict[str, Any], resource: str) -> None:
    answer = VENDOR.request(Resources(limits=asked))
    assert isinstance(answer, BadRequest)
    assert answer.resource == resource
    assert "write" in answer.advice


# -- nodes


def test_cards_are_read_from_the_plugins_own_annotation() -> None:
    entry = {
        "uuid": "MX-0",
        "bdf": "0000:01:00.0",
        "model": "MXC500",
        "totalDevCount": 16,
        "totalCompute": 100,
        "totalVRam": 65536,
        "availableDevCount": 3,
        "availableCompute": 10,
        "availableVRam": 1024,
        "numa": 1,
        "healthy": True,
        "qosPolicy": "best-effort",
        "linkZone": 2,
    }
    plain = {"uuid": "MX-1", "numa": -1}
    custom = {"QosPolicy": "best-effort", "Model": "MXC500", "LinkZone": 2}
    nothing = {"QosPolicy": "", "Model": "", "LinkZone": 0}
    assert devices(VENDOR, node(annotations={REGISTER: json.dumps([entry, plain])})) == (
        Device("MX-0", KEY, 0, 16, 65536, 100, KEY, numa=1, healthy=True, custom=custom),
        Device("MX-1", KEY, 1, 0, 0, 0, KEY, healthy=False, custom=nothing),
    )


@pytest.mark.parametrize(
    "value",
    [
        "{}",
        "nonsense",
        "[" * 50_000,
        "[1]",
        '[{"uuid":""}]',
        '[{"model":"MXC500"}]',
        '[{"uuid":"a,b"}]',
        '[{"uuid":"a"},{"uuid":"a"}]',
        '[{"uuid":"a","totalVRam":-1}]',
        '[{"uuid":"a","totalCompute":99999999999}]',
        '[{"uuid":"a","healthy":"yes"}]',
    ],
)
def test_a_registration_that_cannot_be_read_is_a_problem_of_the_node(value: str) -> None:
    answer = VENDOR.devices(node(annotations={REGISTER: value}))
    assert isinstance(answer, NodeProblem)
    assert answer.text.startswith(REGISTER)


# -- placement


@pytest.mark.parametrize(
    ("there", "asked", "settings", "expected"),
    [
        (card("a", healthy=False), None, {}, "1/1 CardUnhealthy"),
        (card("a", {QOS: "best-effort"}, cores=10), None, {}, ["a"]),
        (card("a", {QOS: "best-effort"}), None, {QOS: "fixed-share"}, "1/1 CardQosPolicyMismatch"),
        (card("a", {QOS: "fixed-share"}, qos="best-effort"), None, {QOS: "fixed-share"}, ["a"]),
        (card("a", {QOS: "fixed-share"}, {QOS: "best-effort"}), None, {}, "1/1 CardQosPolicyMismatch"),
        (card("a", {}, qos="burst-share"), None, {}, "1/1 CardQosPolicyMismatch"),
        (card("a", {}, qos="best-effort"), None, {}, ["a"]),
        (card("a", {}), None, {QOS: "burst-share"}, ["a"]),
        (card("a", qos="burst-share"), None, {QOS: "fixed-share"}, ["a"]),
        (
            card("a", {QOS: "best-effort"}, cores=10),
            request(cores=100),
            {QOS: "fixed-share"},
            "1/1 CardInsufficientCore",
        ),
        (
            card("a", {QOS: "best-effort"}),
            request(cores=100),
            {QOS: "fixed-share"},
            "1/1 ExclusiveDeviceAllocateConflict",
        ),
        (card("a", {}), None, {APP_CLASS: "online"}, "1/1 CardAppClassMismatch"),
        (card("a", {}), None, {APP_CLASS: "offline"}, "1/1 CardAppClassMismatch"),
        (card("a", {APP_CLASS: "online"}), None, {}, "1/1 CardAppClassMismatch"),
        (card("a", {APP_CLASS: "offline"}), None, {}, "1/1 CardAppClassMismatch"),
        (card("a", {APP_CLASS: "online"}), None, {APP_CLASS: "offline"}, "1/1 CardAppClassMismatch"),
        (card("a", {APP_CLASS: "offline", QOS: "fixed-share"}), None, {APP_CLASS: "online"}, ["a"]),
        (card("a", {APP_CLASS: "online"}), None, {APP_CLASS: "online"}, ["a"]),
        (card("a", {APP_CLASS: "offline"}), None, {APP_CLASS: "offline"}, ["a"]),
        (
            card("a", {APP_CLASS: "offline", QOS: "fixed-share"}),
            None,
            {APP_CLASS: "offline", QOS: "best-effort"},
            "1/1 CardQosPolicyMismatch",
        ),
        (card("a"), None, {"metax-tech.com/use-gpuuuid": "b"}, "1/1 CardUuidMismatch"),
        (card("a"), None, {"metax-tech.com/nouse-gpuuuid": "a"}, "1/1 CardUuidMismatch"),
        (card("a", {}, slots=1), None, {}, "1/1 CardTimeSlicingExhausted"),
        (card("a", {}, memory=62000), None, {}, "1/1 CardInsufficientMemory"),
        (card("a", {}, cores=90), None, {}, "1/1 CardInsufficientCore"),
        (card("a", {}, cores=100), request(cores=0), {}, "1/1 CardComputeUnitsExhausted"),
        (card("a", {APP_CLASS: "online"}, memory=62000), None, {APP_CLASS: "online"}, "1/1 CardInsufficientMemory"),
        (card("a", {APP_CLASS: "offline"}, cores=100), request(cores=100), {APP_CLASS: "online"}, ["a"]),
        (card("a", {APP_CLASS: "offline"}, cores=120), request(cores=0), {APP_CLASS: "online"}, ["a"]),
    ],
)
def test_one_card_is_accepted_or_refused_for_its_first_reason(
    there: Card, asked: Request | None, settings: dict[str, str], expected: list[str] | str
) -> None:
    assert chosen(fit([there], asked, settings)) == expected


def test_a_held_card_takes_nothing() -> None:
    held = card("a")
    held.held = "an annotation cannot be read"
    assert chosen(fit([held])) == "1/1 CardUnhealthy"


@pytest.mark.parametrize("app_class", ["online", "offline"])
def test_a_card_whose_users_are_unknown_takes_no_pod_with_a_class(app_class: str) -> None:
    unknown = card("a")
    unknown.used = 1
    assert chosen(fit([unknown])) == ["a"]
    assert chosen(fit([unknown], settings={APP_CLASS: app_class})) == "1/1 CardAppClassMismatch"


def test_mutex_pods_do_not_join_others() -> None:
    assert chosen(fit([card("a", {})], policy="mutex")) == "1/1 ExclusiveDeviceAllocateConflict"


def test_two_containers_of_a_pod_share_a_card_whatever_policy_it_had() -> None:
    mine = Grant(uuid="a", vendor=KEY, memory=4096, cores=20)
    taken = card("a", qos="burst-share", memory=4096, cores=20)
    taken.used = 1
    assert chosen(fit([taken], settings={QOS: "fixed-share"}, earlier=frozenset({mine.uuid}))) == ["a"]
    assert chosen(fit([taken], settings={APP_CLASS: "offline"}, earlier=frozenset({mine.uuid}))) == ["a"]
    assert chosen(fit([taken], settings={QOS: "fixed-share"})) == "1/1 CardQosPolicyMismatch"


def test_grants_carry_what_was_asked() -> None:
    assert fit([card("a")], request(memory=4096, cores=60)) == (Grant(uuid="a", vendor=KEY, memory=4096, cores=60),)
    assert fit([card("a")], request(memory=0, cores=100)) == (Grant(uuid="a", vendor=KEY, memory=65536, cores=100),)
    # Those of online pods take no cores.
    assert fit([card("a")], request(cores=60), {APP_CLASS: "online"}) == (Grant("a", KEY, memory=4096, cores=0),)


def test_too_few_cards_are_counted_beside_the_refused_ones() -> None:
    cards = [card("a"), card("b"), card("c", healthy=False)]
    assert chosen(fit(cards, request(count=3))) == "1/3 CardUnhealthy, 2/3 AllocatedCardsInsufficientRequest"


def test_online_pods_prefer_few_online_pods_and_avoid_cards_of_only_offline_ones() -> None:
    online, offline = {APP_CLASS: "online"}, {APP_CLASS: "offline"}
    cards = [
        card("two-offline", offline, offline),
        card("one-offline", offline),
        card("two-online", online, online),
        card("mixed", online, offline),
        card("one-online", online),
        card("free"),
    ]
    order = []
    while cards:
        answer = fit(cards, settings=online)
        assert isinstance(answer, tuple)
        order.append(answer[0].uuid)
        cards = [c for c in cards if c.device.uuid != answer[0].uuid]
    assert order == ["free", "one-online", "mixed", "two-online", "one-offline", "two-offline"]


def test_offline_pods_keep_the_order_of_the_policy() -> None:
    cards = [card("a", zone=1), card("b", zone=2), card("c", zone=2)]
    assert chosen(fit(cards, request(cores=100), {APP_CLASS: "offline"})) == ["a"]


@pytest.mark.parametrize(
    ("zones", "count", "expected"),
    [
        ([1, 2, 1, 2, 1], 2, [1, 3]),
        ([1, 2, 1, 2, 1], 3, [0, 2, 4]),
        ([1, 2, 1, 2, 1], 4, [1, 3, 0, 2]),
        ([0, 0, 3, 0], 1, [2]),
        ([0, 0, 3, 0], 2, [2, 0]),
        ([0, -1, 0], 2, [0, 1]),
        ([2, 1, 2, 1, 0], 2, [1, 3]),
    ],
)
def test_whole_cards_come_from_the_smallest_link_zone_that_holds_them(
    zones: list[int], count: int, expected: list[int]
) -> None:
    cards = [card(str(i), zone=zone) for i, zone in enumerate(zones)]
    assert chosen(fit(cards, request(count=count, cores=100))) == [str(i) for i in expected]


def test_parts_of_cards_ignore_link_zones() -> None:
    cards = [card("a", zone=1), card("b", zone=2), card("c", zone=2)]
    assert chosen(fit(cards, request(count=2, cores=50))) == ["a", "b"]


def test_a_numa_bound_pod_stays_on_one_numa_node() -> None:
    cards = [card("a", numa=0), card("b", numa=1), card("c", numa=1)]
    assert chosen(fit(cards, request(count=2), numa_bind=True)) == ["b", "c"]
    assert chosen(fit(cards, request(count=3), numa_bind=True)) == (
        "1/3 NumaNotFit, 2/3 AllocatedCardsInsufficientRequest"
    )


def test_a_quota_refuses_cards_that_it_does_not_pay_for() -> None:
    cards = [card("a"), card("b"), card("c", healthy=False)]
    assert chosen(fit(cards, request(count=2), room=QuotaRoom(memory=8192))) == ["a", "b"]
    assert chosen(fit(cards, request(count=2), room=QuotaRoom(memory=8191))) == (
        "1/3 AllocatedCardsInsufficientRequest, 1/3 CardUnhealthy, 1/3 ResourceQuotaNotFit"
    )
    assert (
        chosen(fit(cards, request(count=2), room=QuotaRoom(cores=10))) == "1/3 CardUnhealthy, 2/3 ResourceQuotaNotFit"
    )


# -- node score


def score(
    cards: list[Card], grants: list[Grant], settings: dict[str, str], *, policy: str = "binpack", aware: bool = False
) -> float:
    vendor = MetaxSgpu(NAMES, topology_aware=aware)
    node_view = NodeInfo(NodeFacts("n1"), cards)
    return vendor.node_score(node_view, pod(request(), settings, node_policy=policy), (tuple(grants), ()))


def grant(uuid: str, cores: int = 100) -> Grant:
    return Grant(uuid=uuid, vendor=KEY, memory=4096, cores=cores)


@pytest.mark.parametrize(
    ("company", "expected"),
    [
        ([], 0),
        (["offline"], -100),
        (["offline", "offline"], -200),
        (["online"], -20),
        (["online", "offline"], -22),
    ],
)
def test_online_pods_score_nodes_by_the_company_on_the_chosen_card(company: list[str], expected: int) -> None:
    cards = [card("a", *({APP_CLASS: word} for word in company)), card("b", {APP_CLASS: "online"})]
    settings = {APP_CLASS: "online"}
    assert score(cards, [grant("a", 0)], settings) == expected * 10_000
    assert score(cards, [grant("a", 0)], settings, policy="spread") == expected * -10_000


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        # Six unused cards: zone 1 has a, b, c (3 pairs), zone 2 has d, e (1 pair), f is unlinked.
        (["a", "b", "c"], 10 * 30 - (40 - 30 - 10)),
        (["a", "b"], 10 * 10 - (40 - 10 - 10)),
        (["d", "e"], 10 * 10 - (40 - 10 - 30)),
        (["a", "d"], 0 - (40 - 0 - 10)),
        (["f"], 0),
    ],
)
def test_whole_cards_score_nodes_by_the_links_they_keep_and_break(taken: list[str], expected: int) -> None:
    cards = [card(u, zone=z) for u, z in zip("abcdef", [1, 1, 1, 2, 2, 0], strict=True)]
    cards.append(card("used", {}, zone=1))
    assert score(cards, [grant(uuid) for uuid in taken], {}, aware=True) == expected * 10_000
    assert score(cards, [grant(uuid) for uuid in taken], {}, aware=True, policy="spread") == expected * -10_000


@pytest.mark.parametrize(
    ("wish", "aware", "counts"),
    [(None, False, False), (None, True, True), ("true", False, True), ("f", True, False), ("maybe", True, True)],
)
def test_a_pod_decides_whether_links_count(wish: str | None, aware: bool, counts: bool) -> None:
    cards = [card("a", zone=1), card("b", zone=1)]
    settings = {} if wish is None else {TOPOLOGY_AWARE: wish}
    assert (score(cards, [grant("a"), grant("b")], settings, aware=aware) != 0) is counts


def test_parts_of_cards_do_not_score_nodes() -> None:
    assert score([card("a", zone=1), card("b", zone=1)], [grant("a", 50)], {}, aware=True) == 0


# -- binding


def test_binding_writes_the_slices_for_hami_and_for_metax() -> None:
    grants = ((), (Grant(uuid="MX-0", vendor=KEY, memory=4096, cores=60),))
    bound = Bound(pod=pod(request()), node="n1", grants=grants, now=1700000000.5)
    assert VENDOR.annotations(bound) == {
        "hami.io/metax-sgpu-devices-to-allocate": ";MX-0,Metax-SGPU,4096,60:;",
        "hami.io/metax-sgpu-devices-allocated": ";MX-0,Metax-SGPU,4096,60:;",
        "metax-tech.com/gpu-devices-allocated": '[[],[{"uuid":"MX-0","compute":60,"vRam":4096}]]',
        "metax-tech.com/predicate-time": "1700000000500000000",
    }


def test_the_pods_settings_are_part_of_its_constraint() -> None:
    assert VENDOR.constraint({QOS: "fixed-share", "other": "x", "metax-tech.com/use-gpuuuid": " b ,a,"}) == Constraint(
        use_uuids=("a", "b"), extra=((QOS, "fixed-share"),)
    )
