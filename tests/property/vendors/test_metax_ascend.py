"""Any requests on any cards: grants never exceed a card, and are deterministic."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit.device_rules import QuotaRoom
from tessera.core.fit.fit import fit_pod
from tessera.core.model.devices import Device, NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card, NodeInfo, Tenant
from tessera.core.model.requests import ContainerRequest, PodRequest, Request
from tessera.vendors.ascend import CHART, Ascend
from tessera.vendors.base import ResourceNames, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft
from tessera.vendors.metax import APP_CLASS, ONLINE, POLICIES, QOS, MetaxGpu, MetaxSgpu

SGPU = MetaxSgpu(ResourceNames(count="m/sgpu", memory="m/vmemory", cores="m/vcore"), topology_aware=True)
CHIPS = [Ascend(chip, soft_split=True) for chip in CHART.configs]
VENDORS: list[Vendor] = [SGPU, MetaxGpu(ResourceNames(count="m/gpu")), *CHIPS]

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        QOS: st.sampled_from(POLICIES),
        APP_CLASS: st.sampled_from(["online", "offline"]),
        "huawei.com/vnpu-mode": st.just("hami-core"),
    },
)


@st.composite
def cards(draw: st.DrawFn, vendor: Vendor) -> list[Card]:
    found = []
    for index in range(draw(st.integers(0, 8))):
        memory = draw(st.sampled_from([0, 21527, 32768, 65536]))
        custom: dict[str, Any] = draw(
            st.fixed_dictionaries(
                {"QosPolicy": st.sampled_from(["", *POLICIES]), "LinkZone": st.integers(-1, 2)},
                optional={"NetworkID": st.integers(0, 2)},
            )
        )
        tenants = draw(st.lists(SETTINGS, max_size=3))
        device = Device(
            uuid=f"U{index}",
            vendor=vendor.key,
            index=index,
            slots=draw(st.integers(len(tenants), 4)),
            memory=memory,
            cores=100,
            numa=draw(st.integers(0, 1)),
            healthy=draw(st.booleans()) or draw(st.booleans()),
            custom=custom,
        )
        found.append(
            Card(
                device,
                used=len(tenants),
                used_memory=draw(st.integers(0, memory)) if tenants else 0,
                used_cores=draw(st.integers(0, 100)) if tenants else 0,
                tenants=tuple(Tenant(f"t{i}", tuple(sorted(s.items()))) for i, s in enumerate(tenants)),
            )
        )
    return draw(st.permutations(found))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Vendor, NodeInfo, PodRequest, QuotaRoom]:
    vendor = draw(st.sampled_from(VENDORS))
    asks = []
    for index in range(draw(st.integers(1, 3))):
        memory = draw(st.sampled_from([0, 1000, 3072, 16384, 40000]))
        count = draw(st.integers(1, 5))
        request = Request(
            vendor=vendor.key,
            count=count,
            memory=memory,
            percent=0 if memory else 100,
            cores=draw(st.sampled_from([0, 30, 100, 150])),
        )
        asks.append(ContainerRequest(f"c{index}", requests=(request,)))
    constraint = vendor.constraint(draw(SETTINGS))
    pod = PodRequest(
        "u",
        "ns",
        "p",
        tuple(asks),
        constraints=((vendor.key, constraint),),
        numa_bind=draw(st.booleans()),
        node_policy=draw(st.sampled_from(["binpack", "spread"])),
        device_policy=draw(st.sampled_from(["binpack", "spread", "mutex", "topology-aware"])),
    )
    room = draw(st.builds(QuotaRoom, memory=st.none() | st.integers(0, 100_000), cores=st.none() | st.integers(0, 300)))
    view = draw(cards(vendor))
    return vendor, NodeInfo(NodeFacts("n1", devices=tuple(c.device for c in view)), view), pod, room


@given(worlds())
def test_grants_never_exceed_what_a_card_has(world: tuple[Vendor, NodeInfo, PodRequest, QuotaRoom]) -> None:
    vendor, node, pod, room = world
    before = [card.copy() for card in node.cards]
    answer = fit_pod(node, pod, {vendor.key: vendor}, {vendor.key: room})
    assert list(node.cards) == before
    if isinstance(answer, Misfit):
        assert answer.text
        return
    after = {card.device.uuid: card.copy() for card in node.cards}
    for ask, grants in zip(pod.containers, answer.grants[vendor.key], strict=True):
        assert len(grants) == ask.requests[0].count
        assert len({grant.uuid for grant in grants}) == len(grants)
        for grant in grants:
            card = after[grant.uuid]
            assert card.device.healthy
            assert grant.memory >= min(ask.requests[0].memory, card.device.memory)
            card.take(vendor.charge(card.device, grant))
        if pod.numa_bind:
            assert len({after[grant.uuid].device.numa for grant in grants}) == 1
    for card in after.values():
        assert card.used <= card.device.slots
        assert card.used_memory <= card.device.memory
        assert card.used_cores <= card.device.cores
    granted = [grant for grants in answer.grants[vendor.key] for grant in grants]
    assert room.allows(sum(grant.memory for grant in granted), sum(grant.cores for grant in granted))


@given(worlds())
def test_the_same_world_gives_the_same_answer_in_any_order_of_tenants(
    world: tuple[Vendor, NodeInfo, PodRequest, QuotaRoom],
) -> None:
    vendor, node, pod, room = world
    first = fit_pod(node, pod, {vendor.key: vendor}, {vendor.key: room})
    turned = [replace(card, tenants=card.tenants[::-1]) for card in node.cards]
    assert fit_pod(node._replace(cards=turned), pod, {vendor.key: vendor}, {vendor.key: room}) == first
    if isinstance(first, Placement):
        grants = first.grants[vendor.key]
        assert isinstance(vendor.node_score(node, pod, grants), float)


@given(worlds())
def test_modules_of_a_super_pod_are_never_torn(world: tuple[Vendor, NodeInfo, PodRequest, QuotaRoom]) -> None:
    _, node, pod, room = world
    paired = next(chip for chip in CHIPS if chip.pairs)
    view = [replace(card, device=replace(card.device, vendor=paired.key)) for card in node.cards]
    asks = tuple(
        replace(c, requests=tuple(replace(r, vendor=paired.key, count=2 * r.count) for r in c.requests))
        for c in pod.containers
    )
    moved = replace(pod, containers=asks, constraints=())
    answer = fit_pod(NodeInfo(NodeFacts("n1"), view), moved, {paired.key: paired}, {paired.key: room})
    if isinstance(answer, Placement):
        for grants in answer.grants[paired.key]:
            indexes = {grant.index for grant in grants}
            assert {index ^ 1 for index in indexes} == indexes


@given(worlds())
def test_pods_of_different_kinds_never_share_a_slice_card(
    world: tuple[Vendor, NodeInfo, PodRequest, QuotaRoom],
) -> None:
    _, node, pod, room = world
    view = [replace(card, device=replace(card.device, vendor=SGPU.key)) for card in node.cards]
    asks = tuple(replace(c, requests=tuple(replace(r, vendor=SGPU.key) for r in c.requests)) for c in pod.containers)
    constraints = tuple((SGPU.key, constraint) for _, constraint in pod.constraints)
    moved = replace(pod, containers=asks, constraints=constraints)
    answer = fit_pod(NodeInfo(NodeFacts("n1"), view), moved, {SGPU.key: SGPU}, {SGPU.key: room})
    if isinstance(answer, Misfit):
        return
    mine = moved.constraint(SGPU.key)
    by_uuid = {card.device.uuid: card for card in view}
    for grants in answer.grants[SGPU.key]:
        for grant in grants:
            for tenant in by_uuid[grant.uuid].tenants:
                assert (tenant.setting(APP_CLASS) is None) == (mine.setting(APP_CLASS) is None)
                if tenant.setting(QOS) and ONLINE not in (mine.setting(APP_CLASS), tenant.setting(APP_CLASS)):
                    assert tenant.setting(QOS) == (mine.setting(QOS) or POLICIES[0])


QUANTITIES = st.one_of(
    st.integers(-2, 70_000),
    st.sampled_from(["1", "2", "4Gi", "16384", "1500m", "2k", "junk", "-1", "9" * 40, "１", ""]),
)


@given(
    st.sampled_from(VENDORS),
    st.sampled_from([0, 1, 2, 7, 1024]),
    st.tuples(QUANTITIES, QUANTITIES | st.none(), QUANTITIES | st.none()),
    SETTINGS,
)
def test_mutating_twice_is_mutating_once(
    vendor: Vendor, factor: int, amounts: tuple[Any, Any, Any], annotations: dict[str, str]
) -> None:
    if isinstance(vendor, Ascend):
        vendor = Ascend(msgspec.structs.replace(vendor.chip, memory_factor=factor, overwrite_env=True))
    names = (vendor.names.count, vendor.names.memory, vendor.names.cores)
    limits = {name: value for name, value in zip(names, amounts, strict=True) if name and value is not None}
    container, pod = ContainerDraft(limits=limits), PodDraft(annotations=dict(annotations))
    first = vendor.mutate(container, pod)
    once = deepcopy((container, pod))
    assert vendor.mutate(container, pod) == first
    assert (container, pod) == once
    asked = vendor.request(container)
    if isinstance(asked, BadRequest):
        assert asked.advice
    elif asked is not None and not isinstance(first, Denied):
        assert asked.count >= 1
        assert asked.memory > 0 or asked.percent == 100
