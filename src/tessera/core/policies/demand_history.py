"""Makes the demand forecast from the pods that were asked for.

Counts different requests, not pods, and lets old counts fade: once `FADE_AT` pods are counted, everything is halved.
The forecast is renewed each time the count has doubled, so that it is stable in between and answers can be cached; in
between only what is scarce is put against the cards that are left (`scarcity`). The caller says when a pod is new;
there is no clock here. With few pods the prior holds. It only knows how many cards of each model there are: the first
pods may stay for long, and should not take the rare models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Protocol

import numpy as np

from tessera.core.model.arrays import CardArrays
from tessera.core.model.demand_forecast import GRAIN, PRIOR, DemandForecast, DemandGroup, DemandSlice, HostLoad
from tessera.core.model.devices import Device
from tessera.core.model.requests import WHOLE_CARD_CORES, Constraint, HostRequest, PodRequest, Request
from tessera.core.policies.scarcity import against_what_is_left, given_back_for

FIRST = 32
"""pods before the first forecast of their own"""
FADE_AT = 16_384
"""pods after which everything counted so far is halved"""
SLICES = 24
"""different slices in a forecast; rarer ones are left out"""
LOADS = 8
"""groups of host demand, of equal weight"""
PRIOR_WEIGHT = 300.0
"""pods after which the prior is half of what is expected of groups and models: a request that one pod in some hundreds
makes says nothing before, and may need the only nodes that serve it"""
GROUPS = 12
"""different groups of cards in a forecast; rarer ones are left out"""
CHOOSY = 0.1
"""part of the demand that the prior expects to accept one model only, the same for all models"""
LOOK_AGAIN = 1 / 200
"""what is left is looked at again when pods have asked for so much of all cards"""


class ModelRules(Protocol):
    """What is asked of a vendor's rules."""

    def accepts_model(self, device: Device, constraint: Constraint) -> bool: ...


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
        self._last: list[CountedRequest] = []
        """what the last pod asked for"""
        self._alike = 0
        """pods in a row that asked for the same"""
        self._evidence = 0.0
        """independent pods that tell as much: replicas of one workload come together, and tell little more than one"""
        self._cards = 0.0
        """asked for"""
        self._clumped = 0.0
        """what equal pods in a row add to the variance of that: a row of n pods with c cards, (n * c)**2 - n * c**2"""
        self.ended = 0.0
        """cards of pods that had ended before the ledger knew them"""
        self._renew_at = float(FIRST)
        self._prior = PRIOR
        self._prior_epoch = -1
        """epoch of the cards that the prior knows"""
        self._learned: DemandForecast | None = None
        self._current: DemandForecast | None = None
        """the same against what is left"""
        self._stale_after = 0.0
        """cards to be asked for until what is left is looked at again"""

    def observe(self, pod: PodRequest, arrays: CardArrays, rules: Mapping[str, ModelRules]) -> bool:
        """Count a pod that was not counted before; True if that renewed the forecast."""
        asked = [
            CountedRequest(request, pod.constraint_of(request), pod.host or HostRequest())
            for _, request in pod.requests
            if request.count > 0 and not request.is_admin
        ]
        if not asked:
            return False
        self._alike = self._alike + 1 if asked == self._last else 1
        self._last = asked
        for counted in asked:
            self._counts[counted] = self._counts.get(counted, 0.0) + 1.0
            cards = _cards(counted.request, arrays)
            self._cards += cards
            self._clumped += 2.0 * (self._alike - 1) * cards**2
            self._stale_after -= cards
        self._pods += 1.0
        # A row of n equal pods is something between one observation and n of them: the root of n.
        self._evidence += sqrt(self._alike) - sqrt(self._alike - 1)
        if self._pods < self._renew_at:
            return False
        learned = forecast_from(self._counts, arrays, rules, evidence=self._evidence)
        self._learned = replace(learned, burst=self._clumped / max(self._cards, 1.0))
        self._current = None
        if self._pods >= FADE_AT:
            self._fade()
        self._renew_at = 2.0 * self._pods
        return True

    def note_ended(self, pod: PodRequest) -> None:
        """A pod that was counted had ended by then, so the ledger will not see its end."""
        self.ended += sum(request.count for _, request in pod.requests)

    def resume(self, turnover: float, arrays: CardArrays) -> None:
        """Begin with the turnover that an earlier scheduler knew, if that is more than what is known of ended pods."""
        self.ended = max(self.ended, given_back_for(turnover, arrays))

    def forecast(self, arrays: CardArrays) -> DemandForecast:
        """What to expect: the same object until it is renewed, something becomes scarcer or less scarce, or, while the
        prior holds, cards come or go."""
        expected = self.expected(arrays)
        if self._current is None or self._stale_after <= 0.0:
            ended = self.ended + arrays.given_back
            self._current = against_what_is_left(expected, arrays, ended=ended, current=self._current)
            self._stale_after = LOOK_AGAIN * int((arrays.kind >= 0).sum())
        return self._current

    def expected(self, arrays: CardArrays) -> DemandForecast:
        """The same before it is put against what is left."""
        if self._learned is not None:
            return self._learned
        if self._prior_epoch != arrays.epoch:
            self._prior_epoch, self._prior, self._current = arrays.epoch, prior_for(arrays), None
        return self._prior

    def _fade(self) -> None:
        self._counts = {counted: half for counted, count in self._counts.items() if (half := count / 2.0) >= 0.5}
        self._pods /= 2.0
        self._evidence /= 2.0
        self._cards /= 2.0
        self._clumped /= 2.0


def prior_for(arrays: CardArrays) -> DemandForecast:
    """The forecast if nothing is known but these cards: a rare model is needed more than a common one."""
    owned = {model: cards for model, cards in sorted(_owned(arrays).items()) if cards}
    return PRIOR if len(owned) < 2 else replace(PRIOR, choosy={model: CHOOSY / len(owned) for model in owned})


def forecast_from(
    counts: Mapping[CountedRequest, float], arrays: CardArrays, rules: Mapping[str, ModelRules], *, evidence: float
) -> DemandForecast:
    """The forecast that follows from these counts, which tell as much as `evidence` independent pods."""
    demand = {counted: count * _cards(counted.request, arrays) for counted, count in counts.items()}
    total = sum(demand.values())
    if total <= 0.0:
        return PRIOR
    # Few pods say little about what is rarely asked for: the prior fades, and does not end at once.
    surprise = PRIOR_WEIGHT / (PRIOR_WEIGHT + evidence)
    whole = sum(cards for counted, cards in demand.items() if 2 * max(_slice(counted.request, arrays)) > GRAIN)
    memory = sum(counts[s] * s.request.count * _slice(s.request, arrays)[0] for s in counts)
    cores = sum(counts[s] * s.request.count * min(s.request.cores, WHOLE_CARD_CORES) for s in counts)
    return DemandForecast(
        slices=_slices(counts, arrays),
        loads=_loads(demand, arrays),
        groups=_groups(demand, total, arrays, rules, surprise=surprise),
        choosy=_choosy(demand, total, arrays, rules, surprise=surprise),
        whole_part=whole / total,
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


def _groups(
    demand: Mapping[CountedRequest, float],
    total: float,
    arrays: CardArrays,
    rules: Mapping[str, ModelRules],
    *,
    surprise: float,
) -> tuple[DemandGroup, ...]:
    """By number of cards and accepted models, half of the demand each: what needs little of a host, and what needs
    much. The largest ones. The first half asks for no host at all, since what the second needs may be nowhere."""
    found: dict[tuple[int, tuple[str, ...]], list[tuple[int, int, float]]] = {
        (group.cards, ()): [(0, 0, surprise * group.part)] for group in PRIOR.groups
    }
    for counted, cards in demand.items():
        if counted.request.count > 1:
            key = counted.request.count, _only_models(counted, arrays, rules)
            # What was seen counts in full: in a cluster of equal pods little may ever tell against the prior.
            found.setdefault(key, []).append((counted.host.cpu, counted.host.memory, cards / total))
    groups = []
    for (count, models), hosts in found.items():
        part = sum(part for _, _, part in hosts)
        cpu, memory = _least_of_upper_half(sorted(hosts), part)
        if cpu or memory:
            part /= 2.0
            groups.append(DemandGroup(count, part, part, cpu, memory, models))
        groups.append(DemandGroup(count, part, part, models=models))
    return tuple(sorted(sorted(groups, key=lambda group: (-group.part, group))[:GROUPS]))


def _least_of_upper_half(hosts: Sequence[tuple[int, int, float]], total: float) -> tuple[int, int]:
    """Of CPU, memory and demand, least CPU first: the least that the demand beyond the middle needs."""
    below, upper = 0.0, []
    for cpu, memory, part in hosts:
        below += part
        if below > total / 2.0 or not below < total:
            upper.append((cpu, memory))
    return upper[0][0], min(memory for _, memory in upper)


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


def _choosy(
    demand: Mapping[CountedRequest, float],
    total: float,
    arrays: CardArrays,
    rules: Mapping[str, ModelRules],
    *,
    surprise: float,
) -> dict[str, float]:
    """Demand that some models of its vendor cannot serve, shared among those that can by their number.

    A pod that asks for eight cards accepts no model whose nodes have four, though it does not say so.
    """
    owned, most = _owned(arrays), _most_on_a_node(arrays)
    wanted = {model: surprise * part for model, part in prior_for(arrays).choosy.items()}
    for counted, cards in demand.items():
        offered = [
            model for (vendor, model), on_a_node in most.items() if vendor == counted.request.vendor and on_a_node
        ]
        accepted = _accepted_models(counted, arrays, rules)
        serving = [
            model
            for model in offered
            if model in accepted and most[counted.request.vendor, model] >= counted.request.count
        ]
        number = sum(owned[model] for model in serving)
        for model in serving if len(serving) < len(offered) else ():
            part = (1.0 - surprise) * cards / total
            wanted[model] = wanted.get(model, 0.0) + part * owned[model] / number
    return {model: part for model, part in sorted(wanted.items()) if part > 0.0}


def _only_models(counted: CountedRequest, arrays: CardArrays, rules: Mapping[str, ModelRules]) -> tuple[str, ...]:
    """The models that a request accepts, in order; empty if it refuses none of its vendor."""
    accepted = _accepted_models(counted, arrays, rules)
    offered = {kind.sample.model for kind in arrays.kinds if kind.vendor == counted.request.vendor}
    return () if accepted == offered else tuple(sorted(accepted))


def _accepted_models(counted: CountedRequest, arrays: CardArrays, rules: Mapping[str, ModelRules]) -> set[str]:
    vendor = counted.request.vendor
    kinds = [kind.sample for kind in arrays.kinds if kind.vendor == vendor]
    if vendor not in rules:
        return {kind.model for kind in kinds}
    accepted = {kind.model for kind in kinds if rules[vendor].accepts_model(kind, counted.constraint)}
    # A filter that was dropped meanwhile, because there were many others, is not asked again just for that.
    if counted.constraint.filter is not None and arrays.published_cards.is_asked(counted.constraint.filter):
        selected = arrays.kind[arrays.selected(counted.constraint.filter, slice(None))]
        accepted &= {arrays.kinds[number].sample.model for number in np.unique(selected).tolist()}
    return accepted


def _most_on_a_node(arrays: CardArrays) -> dict[tuple[str, str], int]:
    """By vendor and model: the most cards of it that one node has."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for number, kind in enumerate(arrays.kinds):
        kinds.setdefault((kind.vendor, kind.sample.model), []).append(number)
    return {model: int(np.isin(arrays.kind, of_it).sum(axis=0).max(initial=0)) for model, of_it in kinds.items()}


def _owned(arrays: CardArrays) -> dict[str, int]:
    """Cards by model."""
    numbers: dict[str, int] = {}
    for number, cards in enumerate(arrays.kind_counts()):
        model = arrays.kinds[number].sample.model
        numbers[model] = numbers.get(model, 0) + cards
    return numbers
