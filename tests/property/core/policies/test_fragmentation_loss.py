"""How much the loss of a node grows, against a plain account of its parts, card by card."""

from __future__ import annotations

from functools import cache
from math import sqrt

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.demand_forecast import GRAIN, PRIOR, DemandForecast, DemandGroup, DemandSlice, HostLoad
from tessera.core.model.devices import HAMI_CORE, Device, NodeFacts
from tessera.core.model.node_info import NodeInfo
from tessera.core.model.requests import ContainerRequest, HostRequest, PodRequest, Request, Role
from tessera.core.policies.base import Ranking
from tessera.core.policies.fragmentation import rank
from tessera.core.policies.fragmentation.growth import GROUP, UNSERVED
from tessera.core.policies.fragmentation.waste import NO_DEMAND, SCARCE
from tessera.core.search.selection import Refused, Selector
from tests.support.builders import vendors
from tests.support.oracles import plain_emptiness
from tests.support.strategies import examples

MEMORY = 10_000
"""MiB of every card"""
CLOSE = 1e-5
"""cards: every figure is rounded to six digits"""

SIZES = st.sampled_from((10, 25, 50, 81, 100))
GROUPS: tuple[tuple[DemandGroup, ...], ...] = (
    (),
    (DemandGroup(2, 0.3, 0.3),),
    (DemandGroup(2, 0.1, 0.1, 5_000, 2_000, ("large",)), DemandGroup(4, 0.5, 4.0)),
    (DemandGroup(2, 0.2, 1.0, 24_000, 16_384), DemandGroup(2, 0.2, 0.5, models=("small", "other"))),
)
FORECASTS = st.one_of(
    st.just(PRIOR),
    st.builds(
        DemandForecast,
        slices=st.lists(st.builds(DemandSlice, SIZES, SIZES, st.sampled_from((0.2, 1.0))), max_size=3).map(tuple),
        loads=st.sampled_from(
            ((), (HostLoad(1.0, 4_000.0, 9_000.0),), (HostLoad(0.5, 500.0, 64.0), HostLoad(0.5, 8e3, 1e3)))
        ),
        groups=st.sampled_from(GROUPS),
        pressure=st.sampled_from(({}, {"large": 0.7}, {"small": 0.2, "large": 1.0})),
        host_need=st.sampled_from((1.0, 1.25, 4.0)),
        turnover=st.sampled_from((0.0, 0.375, 1.0)),
        memory_part=st.sampled_from((0.0, 0.5, 0.8)),
    ),
)
HOSTS = st.sampled_from((None, HostRequest(8_000, 32_768), HostRequest(64_000, 262_144)))
NODES = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(("small", "large")), HOSTS), min_size=1, max_size=4)


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    part = draw(SIZES)
    request = Request("NVIDIA", draw(st.sampled_from((1, 1, 2, 4))), percent=part, cores=draw(SIZES))
    host = draw(st.sampled_from((None, HostRequest(2_000, 4_096))))
    asks = (ContainerRequest("c", Role.APP, (request,)),)
    return PodRequest("", "default", "", asks, node_policy="fragmentation", device_policy="fragmentation", host=host)


def asking(pod: PodRequest, forecast: DemandForecast, uid: str) -> PodRequest:
    return PodRequest(
        uid, pod.namespace, uid, pod.containers, node_policy=pod.node_policy, device_policy=pod.device_policy,
        host=pod.host, forecast=forecast,
    )  # fmt: skip


def plain_loss(view: NodeInfo, host: HostRequest | None, forecast: DemandForecast) -> float:
    """Leftovers, unserved, groups and scarce of a node as it stands, each from its definition."""

    @cache
    def waste(memory: int, cores: int) -> float:
        fitting = [s for s in forecast.slices if s.memory <= memory and s.cores <= cores]
        later = sum(s.weight * waste(memory - s.memory, cores - s.cores) for s in fitting)
        return (NO_DEMAND * forecast.worth(memory, cores) + later) / (NO_DEMAND + sum(s.weight for s in fitting))

    free = [(card.free_memory * GRAIN // MEMORY, card.free_cores) for card in view.cards]
    worth = [forecast.worth(*each) for each in free]
    model = view.cards[0].device.model
    whole = sum(card.used == 0 for card in view.cards)

    def places(group: DemandGroup) -> int:
        served = [] if host is None else [host.cpu // max(group.cpu, 1), host.memory // max(group.memory, 1)]
        return min([whole // group.cards, *served]) if not group.models or model in group.models else 0

    unserved = 0.0
    if host is not None:
        served = [(load.weight, min(host.cpu / load.cpu, host.memory / load.memory)) for load in forecast.loads]
        unserved = UNSERVED * sum(weight * max(sum(worth) - cards, 0.0) for weight, cards in served)
    leftovers = sum(waste(*each) for each in free)
    groups = -sum(GROUP * sqrt(group.need) * group.cards * places(group) for group in forecast.groups)
    return (
        leftovers + unserved + groups + SCARCE * forecast.pressure.get(model, 0.0) * sum(1.0 - each for each in worth)
    )


@examples(1.5)
@given(made=NODES, wanted=st.lists(pods(), min_size=1, max_size=5), forecast=FORECASTS)
def test_a_node_is_ranked_by_how_much_its_loss_grows(
    made: list[tuple[int, str, HostRequest | None]], wanted: list[PodRequest], forecast: DemandForecast
) -> None:
    ledger = Ledger(vendors())
    hosts: dict[str, HostRequest | None] = {}
    for number, (cards, model, host) in enumerate(made):
        name = f"n{number}"
        devices = [Device(f"{name}-{i}", "NVIDIA", i, 10, MEMORY, model=model, mode=HAMI_CORE) for i in range(cards)]
        ledger.observe_node(NodeFacts(name, tuple(devices)))
        hosts[name] = host
        if host is not None:
            ledger.arrays.set_host_free(name, cpu=host.cpu, memory=host.memory)
    for place, pod in enumerate(wanted):
        asked = asking(pod, forecast, f"u{place}")
        rows = np.arange(len(ledger.arrays.names), dtype=np.intp)
        ranked = rank(Ranking(asked, rows, np.zeros(len(rows)), ledger.arrays))
        answer = Selector(ledger).select(asked, ledger.node_names())
        if isinstance(answer, Refused):
            continue
        name = answer.placement.node
        growth = -ranked[ledger.arrays.row(name)]
        before, host = ledger.node(name), hosts[name]
        assert before is not None
        old = plain_loss(before, host, forecast) - plain_emptiness(before, host, forecast)
        ledger.reserve(asked, answer.placement, deadline=1.0)
        if host is not None and asked.host is not None:
            host = hosts[name] = HostRequest(max(host.cpu - asked.host.cpu, 0), max(host.memory - asked.host.memory, 0))
            ledger.arrays.set_host_free(name, cpu=host.cpu, memory=host.memory)
        view = ledger.node(name)
        assert view is not None
        assert abs(growth - (plain_loss(view, host, forecast) - old)) < CLOSE
