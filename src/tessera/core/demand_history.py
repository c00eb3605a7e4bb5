"""Makes the demand forecast from the pods that were asked for.

Counts different requests, not pods, and lets old counts fade: once `FADE_AT` pods are counted, everything is halved.
The forecast is renewed each time the count has doubled, so that it is stable in between and answers can be cached. The
caller says when a pod is new; there is no clock here. With few pods the prior holds. It only knows how many cards of
each model there are: the first pods may stay for long, and should not take the rare models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tessera.core.arrays import CardArrays
from tessera.core.demand_forecast import GRAIN, PRIOR, DemandForecast, DemandSlice, HostLoad
from tessera.core.device_rules import Rules
from tessera.core.requests import WHOLE_CARD_CORES, Constraint, HostRequest, PodRequest, Request

FIRST = 32
"""pods before the first forecast of their own"""
FADE_AT = 16_384
"""pods after which everything counted so far is halved"""
SLICES = 24
"""different slices in a forecast; rarer ones are left out"""
LOADS = 8
"""groups of host demand, of equal weight"""
CHOOSY = 0.1
"""part of the demand that the prior expects to accept one model only, the same for all models"""


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """One request with the cards that the pod accepts and what it needs of the host."""

    request: Request
    constraint: Constraint
    host: HostRequest


class DemandHistory:
    """Counts of recent requests, and the forecast that follows from them."""

    def __init__(self) -> None:
        self._counts: dict[CountedRequest, float] = {}
        self._pods = 0.0
        self._renew_at = float(FIRST)
        self._prior = PRIOR
        self._prior_epoch = -1
        """epoch of the cards that the prior knows"""
        self._learned: DemandForecast | None = None

    def observe(self, pod: PodRequest, arrays: CardArrays, rules: Mapping[str, Rules]) -> bool:
        """Count a pod that was not counted before; True if that renewed the forecast."""
        asked = [request for _, request in pod.requests if request.count > 0]
        for request in asked:
            counted = CountedRequest(request, pod.constraint(request.vendor), pod.host or HostRequest())
            self._counts[counted] = self._counts.get(counted, 0.0) + 1.0
        if not asked:
            return False
        self._pods += 1.0
        if self._pods < self._renew_at:
            return False
        self._learned = forecast_from(self._counts, arrays, rules)
        if self._pods >= FADE_AT:
            self._fade()
        self._renew_at = 2.0 * self._pods
        return True

    def forecast(self, arrays: CardArrays) -> DemandForecast:
        """What to expect: the same object until it is renewed, or, while the prior holds, until cards come or go."""
        if self._learned is not None:
            return self._learned
        if self._prior_epoch != arrays.epoch:
            self._prior_epoch, self._prior = arrays.epoch, prior_for(arrays)
        return self._prior

    def _fade(self) -> None:
        self._counts = {counted: half for counted, count in self._counts.items() if (half := count / 2.0) >= 0.5}
        self._pods /= 2.0


def prior_for(arrays: CardArrays) -> DemandForecast:
    """The forecast if nothing is known but these cards: a rare model is needed more than a common one."""
    owned = {model: cards for model, cards in sorted(_owned(arrays).items()) if cards}
    every = sum(owned.values())
    if len(owned) < 2:
        return PRIOR
    return replace(PRIOR, pressure={model: CHOOSY / len(owned) * every / cards for model, cards in owned.items()})


def forecast_from(
    counts: Mapping[CountedRequest, float], arrays: CardArrays, rules: Mapping[str, Rules]
) -> DemandForecast:
    """The forecast that follows from these counts."""
    demand = {counted: count * _cards(counted.request, arrays) for counted, count in counts.items()}
    total = sum(demand.values())
    if total <= 0.0:
        return PRIOR
    memory = sum(counts[s] * s.request.count * _slice(s.request, arrays)[0] for s in counts)
    cores = sum(counts[s] * s.request.count * min(s.request.cores, WHOLE_CARD_CORES) for s in counts)
    return DemandForecast(
        slices=_slices(counts, arrays),
        loads=_loads(demand, arrays),
        groups=_groups(demand, total),
        pressure=_pressure(demand, total, arrays, rules),
        memory_part=memory / (memory + cores) if memory + cores > 0 else 0.5,
    )


def _slice(request: Request, arrays: CardArrays) -> tuple[int, int]:
    """Per cent of memory and cores; MiB are put against the largest card of the vendor."""
    percent = request.percent
    if request.memory > 0:
        largest = max(arrays.largest_card.get(request.vendor, 0), 1)
        percent = -(-request.memory * GRAIN // largest)
    return min(percent, GRAIN), min(request.cores, WHOLE_CARD_CORES)


def _cards(request: Request, arrays: CardArrays) -> float:
    """How many cards a request takes, by memory or by cores, whichever is more."""
    return request.count * max(_slice(request, arrays)) / GRAIN


def _slices(counts: Mapping[CountedRequest, float], arrays: CardArrays) -> tuple[DemandSlice, ...]:
    found: dict[tuple[int, int], float] = {}
    for counted, count in counts.items():
        if counted.request.count == 1:
            memory, cores = _slice(counted.request, arrays)
            key = max(memory, 1), max(cores, 1)
            found[key] = found.get(key, 0.0) + count
    total = sum(found.values())
    often = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:SLICES]
    return tuple(DemandSlice(memory, cores, count / total) for (memory, cores), count in sorted(often))


def _groups(demand: Mapping[CountedRequest, float], total: float) -> tuple[tuple[int, float], ...]:
    found: dict[int, float] = {}
    for counted, cards in demand.items():
        if counted.request.count > 1:
            found[counted.request.count] = found.get(counted.request.count, 0.0) + cards / total
    return tuple(sorted(found.items()))


def _loads(demand: Mapping[CountedRequest, float], arrays: CardArrays) -> tuple[HostLoad, ...]:
    """Equal parts of the demand, from the least CPU per card to the most, each with its means."""
    per_card = []
    for counted, cards in demand.items():
        one = _cards(counted.request, arrays)
        if one > 0.0 and counted.host != HostRequest():
            per_card.append((counted.host.cpu / one, counted.host.memory / one, cards))
    total = sum(cards for _, _, cards in per_card)
    sums = [[0.0, 0.0, 0.0] for _ in range(LOADS)]
    before = 0.0
    for cpu, memory, cards in sorted(per_card):
        part = sums[min(int((before + cards / 2.0) / total * LOADS), LOADS - 1)]
        before += cards
        part[0] += cards
        part[1] += cards * cpu
        part[2] += cards * memory
    return tuple(HostLoad(cards / total, cpu / cards, memory / cards) for cards, cpu, memory in sums if cards > 0.0)


def _pressure(
    demand: Mapping[CountedRequest, float], total: float, arrays: CardArrays, rules: Mapping[str, Rules]
) -> dict[str, float]:
    """Demand that refuses some models of its vendor, shared among those it accepts by their number."""
    owned = _owned(arrays)
    wanted: dict[str, float] = {}
    for counted, cards in demand.items():
        vendor = counted.request.vendor
        if vendor not in rules:
            continue
        kinds = [kind.sample for kind in arrays.kinds if kind.vendor == vendor]
        accepted = {kind.model for kind in kinds if rules[vendor].accepts_model(kind, counted.constraint)}
        if len(accepted) == len({kind.model for kind in kinds}):
            continue
        number = sum(owned.get(model, 0) for model in accepted)
        for model in sorted(accepted) if number else ():
            wanted[model] = wanted.get(model, 0.0) + cards / total * owned.get(model, 0) / number
    every = sum(owned.values())
    return {model: part * every / owned[model] for model, part in sorted(wanted.items()) if owned.get(model)}


def _owned(arrays: CardArrays) -> dict[str, int]:
    """Cards by model."""
    numbers: dict[str, int] = {}
    for number, cards in enumerate(arrays.kind_counts()):
        model = arrays.kinds[number].sample.model
        numbers[model] = numbers.get(model, 0) + cards
    return numbers
