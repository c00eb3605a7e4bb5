"""The policy `fragmentation` against a plain account of the loss, card by card, without arrays and without memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil, sqrt
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit.fit import fit_pod
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.demand_forecast import GRAIN, DemandForecast, DemandGroup, DemandSlice, HostLoad
from tessera.core.model.devices import HAMI_CORE, MIG, Device, MigPlacement, MigProfile, NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.node_info import NodeInfo
from tessera.core.model.requests import ContainerRequest, HostRequest, PodRequest, Request, Role
from tessera.core.policies.fragmentation import CachedPreference
from tessera.core.policies.fragmentation.array_growth import growth_by_column
from tessera.core.policies.fragmentation.growth import GROUP, UNSERVED
from tessera.core.policies.fragmentation.waste import NO_DEMAND, SCARCE
from tessera.core.search.selection import Refused, Selected, Selector
from tests.support.builders import vendors
from tests.support.oracles import plain_emptiness
from tests.support.strategies import examples

NVIDIA = "NVIDIA"
MODELS = ("small", "large")

EIGHTHS = ((1, 12, 1, range(7)), (2, 25, 2, (0, 2, 4)), (3, 50, 4, (0, 4)), (7, 100, 8, (0,)))
"""of a card: compute slices, per cent, memory slices, places"""
HALVES = ((1, 25, 1, range(4)), (2, 50, 2, (0, 2)), (4, 100, 4, (0,)))

PARTS = st.sampled_from((1, 10, 20, 25, 47, 50, 81, 100))
SLICES = st.builds(DemandSlice, PARTS, PARTS, st.sampled_from((0.1, 0.5, 1.0)))
LOADS = st.builds(
    HostLoad, st.sampled_from((0.25, 0.75)), st.sampled_from((500.0, 4000.0)), st.sampled_from((64.0, 9000.0))
)
GROUPS: tuple[tuple[DemandGroup, ...], ...] = (
    (),
    (DemandGroup(2, 0.3, 0.3),),
    (DemandGroup(2, 0.1, 0.1, 5_000, 2_000, ("large",)), DemandGroup(4, 0.5, 4.0)),
    (DemandGroup(2, 0.2, 1.0, 24_000, 16_384), DemandGroup(2, 0.2, 0.5, models=("small", "other"))),
)
FORECASTS = st.builds(
    DemandForecast,
    slices=st.lists(SLICES, max_size=4).map(tuple),
    loads=st.lists(LOADS, max_size=2).map(tuple),
    groups=st.sampled_from(GROUPS),
    pressure=st.sampled_from(({}, {"large": 0.7}, {"small": 0.2, "large": 1.0})),
    whole_need=st.sampled_from((1.0, 1.5)),
    host_need=st.sampled_from((1.0, 1.25, 4.0)),
    turnover=st.sampled_from((0.0, 0.375, 1.0)),
    memory_part=st.sampled_from((0.0, 0.5, 0.8)),
)


@st.composite
def nodes(draw: st.DrawFn) -> list[tuple[NodeFacts, HostRequest | None]]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        model, memory = draw(st.sampled_from(MODELS)), draw(st.sampled_from((1000, 1024, 24576)))
        mode, offers = draw(st.sampled_from(((HAMI_CORE, ()), (HAMI_CORE, ()), (MIG, HALVES), (MIG, EIGHTHS))))
        profiles = tuple(
            MigProfile(f"{slices}g", memory * part // 100, part, slices, tuple(MigPlacement(s, size) for s in starts))
            for slices, part, size, starts in offers
        )
        cards = tuple(
            Device(
                f"n{number}-{i}", NVIDIA, i, 10, memory,
                model=model, mode=mode, mig_profiles=profiles, healthy=draw(st.sampled_from((True, True, True, False))),
            )
            for i in range(draw(st.integers(1, 4)))
        )  # fmt: skip
        host = draw(st.sampled_from((None, HostRequest(8_000, 32_768), HostRequest(64_000, 262_144))))
        cordoned = frozenset(draw(st.sampled_from(((), (), (), (cards[0].uuid,)))))
        made.append((NodeFacts(f"n{number}", cards, cordoned), host))
    return made


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    part = draw(PARTS)
    request = Request(
        NVIDIA, draw(st.sampled_from((1, 1, 1, 2, 4))), percent=part, cores=draw(st.sampled_from((0, part, 100)))
    )
    host = draw(st.sampled_from((None, HostRequest(2_000, 4_096))))
    return PodRequest(
        "", "default", "", (ContainerRequest("c", Role.APP, (request,)),), host=host,
        node_policy="fragmentation", device_policy="fragmentation",
    )  # fmt: skip


def ledger_of(made: list[tuple[NodeFacts, HostRequest | None]]) -> Ledger:
    ledger = Ledger(vendors())
    for facts, host in made:
        ledger.observe_node(facts)
        if host is not None:
            ledger.arrays.set_host_free(facts.name, cpu=host.cpu, memory=host.memory)
    return ledger


def plain_mig_waste(device: Device, taken: frozenset[int], forecast: DemandForecast) -> float:
    """What nobody will come for, from the definition: `taken` are the memory slices in use."""
    slices = max(place.start + place.size for profile in device.mig_profiles for place in profile.placements)

    @cache
    def waste(taken: frozenset[int]) -> float:
        chance, later = NO_DEMAND, NO_DEMAND * (1.0 - len(taken) / slices)
        for part in forecast.slices:
            for profile in sorted(device.mig_profiles, key=lambda profile: profile.memory):
                spans = [frozenset(range(place.start, place.start + place.size)) for place in profile.placements]
                free = [span for span in spans if not span & taken]
                if free and ceil(profile.memory * GRAIN / device.memory) >= part.memory:
                    chance += part.weight
                    later += part.weight * min(waste(taken | span) for span in free)
                    break
        return later / chance

    return waste(taken)


def plain_loss(view: NodeInfo, host: HostRequest | None, forecast: DemandForecast) -> float:
    """The parts that belong to a node as it stands, from their definitions."""

    @cache
    def waste(memory: int, cores: int) -> float:
        fitting = [s for s in forecast.slices if s.memory <= memory and s.cores <= cores]
        chance = NO_DEMAND + sum(s.weight for s in fitting)
        later = sum(s.weight * waste(memory - s.memory, cores - s.cores) for s in fitting)
        return (NO_DEMAND * forecast.worth(memory, cores) + later) / chance

    free = [
        (
            c.free_memory * GRAIN // c.device.memory,
            max(c.free_cores, 0) * GRAIN // c.device.cores,
            c.device.model,
        )
        for c in view.cards
    ]
    usable = [card.device.healthy and not card.cordoned for card in view.cards]
    idle = sum(forecast.worth(memory, cores) for (memory, cores, _), can in zip(free, usable, strict=True) if can)
    loss = 0.0
    for card, (memory, cores, _) in zip(view.cards, free, strict=True):
        if card.device.mode == MIG:
            spans = (range(p.start, p.start + p.size) for p in (slot.placement for slot in card.mig))
            loss += plain_mig_waste(card.device, frozenset(i for span in spans for i in span), forecast)
        else:
            loss += waste(memory, cores)
    loss += SCARCE * sum(forecast.pressure.get(model, 0.0) * (1.0 - forecast.worth(m, c)) for m, c, model in free)
    loss -= SCARCE * (forecast.whole_need - 1.0) * sum(card.used == 0 for card in view.cards)
    if host is not None:
        for load in forecast.loads:
            served = min(host.cpu / load.cpu, host.memory / load.memory)
            loss += UNSERVED * load.weight * max(idle - served, 0.0)
    whole = sum(card.used == 0 for card, can in zip(view.cards, usable, strict=True) if can)
    for group in forecast.groups:
        if not group.models or view.cards[0].device.model in group.models:
            places = [whole // group.cards]
            if host is not None:
                places += [host.cpu // max(group.cpu, 1), host.memory // max(group.memory, 1)]
            loss -= GROUP * sqrt(group.need) * group.cards * min(places)
    return loss


def after(host: HostRequest | None, pod: PodRequest) -> HostRequest | None:
    asked = pod.host or HostRequest()
    return None if host is None else HostRequest(host.cpu - asked.cpu, host.memory - asked.memory)


@examples(1.5)
@given(made=nodes(), wanted=st.lists(pods(), min_size=1, max_size=6), forecast=FORECASTS)
def test_the_growth_kept_up_to_date_is_the_growth_of_the_plain_loss(
    made: list[tuple[NodeFacts, HostRequest | None]], wanted: list[PodRequest], forecast: DemandForecast
) -> None:
    ledger = ledger_of(made)
    hosts = {facts.name: host for facts, host in made}
    remembered = {place: CachedPreference(replace(pod, forecast=forecast)) for place, pod in enumerate(wanted)}
    for place, pod in enumerate(wanted):
        asked = replace(pod, uid=f"u{place}", forecast=forecast)
        grown = -remembered[place].preference(ledger.arrays)
        for other in remembered.values():
            kept = other.preference(ledger.arrays)
            assert kept.tolist() == CachedPreference(other.pod).preference(ledger.arrays).tolist()
            columns = np.flatnonzero(~ledger.arrays.odd[: len(kept)])
            assert kept[columns].tolist() == (-growth_by_column(ledger.arrays, other.pod, columns)).tolist()
        answer = Selector(ledger).select(asked, ledger.node_names())
        if isinstance(answer, Refused):
            continue
        name = answer.placement.node
        before = ledger.node(name)
        assert before is not None
        old = plain_loss(before, hosts[name], forecast) - plain_emptiness(before, hosts[name], forecast)
        ledger.reserve(asked, answer.placement, deadline=1.0)
        hosts[name] = after(hosts[name], asked)
        if (host := hosts[name]) is not None:
            ledger.arrays.set_host_free(name, cpu=max(host.cpu, 0), memory=max(host.memory, 0))
        now = ledger.node(name)
        assert now is not None
        if host is None or min(host.cpu, host.memory) >= 0:
            assert abs(float(grown[ledger.arrays.row(name)]) - (plain_loss(now, host, forecast) - old)) < 1e-5


@examples(1.5)
@given(made=nodes(), wanted=st.lists(pods(), min_size=1, max_size=8), forecast=FORECASTS)
def test_no_pod_that_fits_somewhere_is_refused(
    made: list[tuple[NodeFacts, HostRequest | None]], wanted: list[PodRequest], forecast: DemandForecast
) -> None:
    ledger = ledger_of(made)
    selector = Selector(ledger)
    for place, pod in enumerate(wanted):
        asked = replace(pod, uid=f"u{place}", forecast=forecast)
        views = [view for name in ledger.node_names() if (view := ledger.node(name)) is not None]
        fits = any(isinstance(fit_pod(view, asked, ledger.rules, {}), Placement) for view in views)
        answer = selector.select(asked, ledger.node_names())
        assert isinstance(answer, Selected) == fits
        if isinstance(answer, Selected):
            ledger.reserve(asked, answer.placement, deadline=1.0)


@examples(0.6)
@given(made=nodes(), pod=pods(), forecast=FORECASTS, order=st.randoms(use_true_random=True))
def test_the_order_of_registration_and_of_the_candidates_does_not_matter(
    made: list[tuple[NodeFacts, HostRequest | None]], pod: PodRequest, forecast: DemandForecast, order: Random
) -> None:
    asked = replace(pod, forecast=forecast)
    shuffled = list(made)
    order.shuffle(shuffled)
    answers = [Selector(ledger_of(each)).select(asked, [facts.name for facts, _ in each]) for each in (made, shuffled)]
    found = [answer.placement.node if isinstance(answer, Selected) else None for answer in answers]
    assert found[0] == found[1]
