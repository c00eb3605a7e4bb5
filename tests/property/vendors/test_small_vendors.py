from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.model.devices import Device
from tessera.core.model.grants import Grants
from tessera.core.model.misfits import Misfit
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.amd import CHART as AMD_CHART
from tessera.vendors.amd import Amd
from tessera.vendors.awsneuron import CHART as NEURON_CHART
from tessera.vendors.awsneuron import Neuron
from tessera.vendors.base import NodeProblem, Switches, Vendor
from tessera.vendors.biren import FAMILY as BIREN
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.enflame import CAPACITY
from tessera.vendors.enflame import FAMILY as ENFLAME
from tessera.vendors.kunlun import FAMILY as KUNLUN_FAMILY
from tessera.vendors.vastai import FAMILY as VASTAI
from tessera.wire.objects import Node
from tests.support.vendor_cases import VendorNode, devices, node, taken

GCU, DRS = ENFLAME.build(ENFLAME.chart, Switches())
(VA,) = VASTAI.build(VASTAI.chart, Switches())
(BIREN_VENDOR,) = BIREN.build(BIREN.chart, Switches())
KUNLUN, XPU = KUNLUN_FAMILY.build(KUNLUN_FAMILY.chart, Switches())
NEURON, AMD = Neuron(NEURON_CHART.names), Amd(AMD_CHART.names)
ALL: list[Vendor] = [GCU, DRS, VA, BIREN_VENDOR, KUNLUN, XPU, NEURON, AMD]

POLICIES = st.sampled_from(["spread", "binpack", "mutex", "mutex,numa"])
Limits = dict[str, Any]


def small(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


@st.composite
def drs_nodes(draw: st.DrawFn) -> Node:
    sizes = draw(st.sets(small(1, 100), min_size=1, max_size=5))
    offer = {
        "devices": [{"index": str(i), "capacity": draw(small(1, 100))} for i in range(draw(small(1, 3)))],
        "profiles": {f"{size}g.{draw(small(1, 64))}gb": str(size) for size in sizes},
    }
    return node(annotations={CAPACITY: json.dumps(offer)})


@st.composite
def registered(draw: st.DrawFn, vendor: Vendor, *, most_memory: int = 200_000) -> list[Device]:
    return [
        Device(
            uuid=f"{vendor.key}-{i}",
            vendor=vendor.key,
            index=draw(small(0, 9)),
            slots=draw(small(0, 4)),
            memory=draw(small(0, most_memory)),
            cores=draw(small(0, 304)),
            numa=draw(small(0, 1)),
            healthy=draw(st.integers(0, 5)) > 0,
            custom={"DeviceStrategy": draw(st.sampled_from(["die", "card"])), "AIC": draw(st.sampled_from("AB"))},
        )
        for i in range(draw(small(1, 9)))
    ]


def of(vendor: Vendor, nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[list[Device]]:
    return nodes.map(lambda n: list(devices(vendor, n)))


def capacities(**names: tuple[int, int]) -> st.SearchStrategy[Node]:
    ranges = {name: small(*bounds) for name, bounds in names.items()}
    return st.fixed_dictionaries(ranges).map(lambda capacity: node(capacity=capacity))


neuron_nodes = st.tuples(small(1, 20), small(1, 31), st.sampled_from(["inf2", "trn1", ""])).map(
    lambda t: node(
        capacity={NEURON.names.count: t[0], NEURON.names.cores: t[0] * t[1]},
        labels={"node.kubernetes.io/instance-type": t[2]},
    )
)

WORLDS: list[tuple[Vendor, st.SearchStrategy[list[Device]], st.SearchStrategy[Limits]]] = [
    (GCU, of(GCU, capacities(**{GCU.names.count: (1, 9)})), st.fixed_dictionaries({GCU.names.count: small(1, 4)})),
    (
        DRS,
        of(DRS, drs_nodes()),
        st.one_of(
            st.fixed_dictionaries({DRS.names.count: small(1, 6)}),
            st.fixed_dictionaries({DRS.names.memory: small(1, 99), DRS.names.cores: small(1, 100)}),
        ),
    ),
    (
        KUNLUN,
        of(KUNLUN, capacities(**{KUNLUN.names.count: (1, 17)})),
        st.fixed_dictionaries({KUNLUN.names.count: small(1, 8)}),
    ),
    (XPU, registered(XPU), st.fixed_dictionaries({XPU.names.count: small(1, 5), XPU.names.memory: small(0, 98304)})),
    (
        NEURON,
        of(NEURON, neuron_nodes),
        st.one_of(
            st.fixed_dictionaries({NEURON.names.count: small(1, 8)}),
            st.fixed_dictionaries({NEURON.names.cores: st.sampled_from([1, 2, 4, 6, 8, 16])}),
        ),
    ),
    (
        AMD,
        registered(AMD),
        st.fixed_dictionaries(
            {AMD.names.count: small(1, 3)},
            optional={AMD.names.memory: small(0, 100_000), AMD.names.cores: small(1, 100)},
        ),
    ),
    (VA, registered(VA), st.fixed_dictionaries({VA.names.count: small(1, 5)})),
    (BIREN_VENDOR, registered(BIREN_VENDOR), st.fixed_dictionaries({BIREN_VENDOR.names.count: small(1, 5)})),
]


def check_masks(vendor: Vendor, cards: list[Card], grants: Grants) -> None:
    if vendor.core_masks:
        by_uuid = {card.device.uuid: card for card in cards}
        assert all(grant.cores and not grant.cores & by_uuid[grant.uuid].used_cores for grant in grants)


def within_the_card(card: Card) -> bool:
    device = card.device
    return (
        (device.slots == 0 or card.used <= device.slots)
        and card.used_memory <= device.memory
        and (device.cores == 0 or card.used_cores <= device.cores)
    )


@given(data=st.data())
def test_no_sequence_of_pods_takes_more_of_a_card_than_it_has(data: st.DataObject) -> None:
    vendor, some_devices, some_limits = data.draw(st.sampled_from(WORLDS))
    cards = [Card(device) for device in data.draw(some_devices)]
    for limits in data.draw(st.lists(some_limits, min_size=1, max_size=25)):
        order = data.draw(st.permutations(range(len(cards))))
        world = VendorNode(vendor, [cards[i] for i in order], data.draw(POLICIES), numa_bind=data.draw(st.booleans()))
        request = vendor.request(Resources(limits=limits))
        assert isinstance(request, Request)
        answer = world.fit(request)
        if isinstance(answer, Misfit):
            assert answer.text
            continue
        assert len({grant.uuid for grant in answer}) == len(answer)
        assert vendor is NEURON or len(answer) == request.count
        check_masks(vendor, cards, answer)
        live = {card.device.uuid: card.device for card in cards}
        cards = taken(vendor, cards, answer)
        assert all(within_the_card(card) for card in cards)
        assert all(vendor.charge(live[g.uuid], g).slots == g.slots for g in answer)
        assert world.written(answer)


QUANTITIES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["1", "2Gi", "1500m", "-1", "0", "1e400", "１", "24576", "100000"]),
)


@given(data=st.data())
def test_admission_is_repeatable_and_answers_any_quantity(data: st.DataObject) -> None:
    vendor = data.draw(st.sampled_from(ALL))
    names = st.sampled_from(vendor.names.all)
    limits = data.draw(st.dictionaries(names, QUANTITIES))
    draft, pod = ContainerDraft(dict(limits), data.draw(st.dictionaries(names, QUANTITIES))), PodDraft()
    first = vendor.mutate(draft, pod)
    once = repr((draft, pod))
    assert vendor.mutate(draft, pod) == first
    assert repr((draft, pod)) == once
    assert isinstance(first, bool | Denied)
    assert isinstance(vendor.request(draft), Request | BadRequest | None)


FIELDS = ["devices", "profiles", "index", "capacity", "minor", "1g.8gb", "id", "count"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=12,
)


@given(data=st.data())
def test_any_node_gives_cards_or_a_problem(data: st.DataObject) -> None:
    vendor = data.draw(st.sampled_from(ALL))
    text: Callable[[Any], str] = json.dumps
    found = vendor.devices(
        node(
            capacity=data.draw(st.dictionaries(st.sampled_from(vendor.names.all), QUANTITIES)),
            annotations={vendor.keys.register: data.draw(st.one_of(st.text(max_size=60), JSON.map(text)))},
        )
    )
    assert isinstance(found, NodeProblem | tuple)
    if isinstance(found, tuple):
        assert len({device.uuid for device in found}) == len(found)
        assert all(device.vendor == vendor.key for device in found)
