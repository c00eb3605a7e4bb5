"""The fit rule that most vendors share: check card by card (`eligible`), then choose (`choose`).

The checks are the table of `card_rules`. The checks of one card never depend on another card, so reasons do not depend
on the order of the cards and `screen` can judge many nodes at once with the same result. Only quota and MIG look at
what was taken before. Vendors with checks or preferences of their own replace the first half and keep the second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from tessera.core.fit import topology
from tessera.core.fit.card_rules.amounts import Slots, memory_wanted
from tessera.core.fit.card_rules.base import CardRule
from tessera.core.model import mig
from tessera.core.model.devices import MIG, Device, MigProfile
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason, cards_misfit
from tessera.core.model.node_info import Card
from tessera.core.model.requests import WHOLE_CARD_CORES

if TYPE_CHECKING:
    from tessera.core.fit.device_rules import Ask, Rules

Offer = Grant | CardMisfit
"""what a card would give, or why it gives nothing"""
Fitting = list[tuple[Card, Grant]]
"""cards that fit by themselves, with what they would give, best first"""


def _first_refusal(checks: Iterable[CardRule], rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    for rule in checks:
        refusal = rule.refuse(rules, ask, card)
        if refusal is not None:
            return refusal
    return None


def refuse_identity(rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    """Checks that look at the card itself, not at its use."""
    return _first_refusal(ask.checks.identity, rules, ask, card)


def refuse_sharing(rules: Rules, ask: Ask, card: Card, *, by_slots: bool = True) -> CardMisfit | None:
    """Free slots, and with which pods this one shares a card. `by_slots`: whether the card has slots at all."""
    sharing = ask.checks.sharing
    checks = sharing if by_slots else [rule for rule in sharing if not isinstance(rule, Slots)]
    return _first_refusal(checks, rules, ask, card)


def refuse_capacity(rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    """Memory, cores and exclusive use."""
    return _first_refusal(ask.checks.capacity, rules, ask, card)


def refuse_memory(card: Card, memory: int) -> CardMisfit | None:
    device, free = card.device, card.free_memory
    if free >= memory:
        return None
    return CardMisfit(device.uuid, Reason.CARD_INSUFFICIENT_MEMORY, asked=memory, free=free, total=device.memory)


def refuse_cores(card: Card, cores: int) -> CardMisfit | None:
    device, free = card.device, card.free_cores
    if free >= cores:
        return None
    return CardMisfit(device.uuid, Reason.CARD_INSUFFICIENT_CORES, asked=cores, free=free, total=device.cores)


def counted_cores(cores: int) -> int:
    """Cores as quotas count them: a card is never more than a whole one."""
    return min(cores, WHOLE_CARD_CORES)


def refuse_quota(ask: Ask, card: Card, *, memory: int, cores: int) -> CardMisfit | None:
    """A slice that alone is more than the quota leaves."""
    return None if ask.room.allows(memory, counted_cores(cores)) else _unpaid(ask, card, memory)


def refuse(rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    """All checks of one card that need no knowledge of other cards."""
    checks, request = ask.checks, ask.request
    refusal = _first_refusal((*checks.identity, *checks.sharing), rules, ask, card)
    if refusal is not None or not checks.capacity:
        return refusal  # An administrator's access asks nothing more.
    if ask.is_limited:
        refusal = refuse_quota(ask, card, memory=memory_wanted(request, card.device), cores=request.cores)
    refusal = refusal or _first_refusal(checks.capacity, rules, ask, card)
    if refusal is None and card.device.mode != MIG:
        custom = rules.custom_rule(card, ask)
        return None if custom is None else CardMisfit(card.device.uuid, custom)
    return refusal


def offers(rules: Rules, ask: Ask, card: Card) -> Iterable[Offer]:
    """What one card offers, best first: a grant, or several from a MIG card; ends after a refusal."""
    if card.device.mode == MIG:
        return _instances(rules, ask, card)
    refusal = refuse(rules, ask, card)
    return (rules.grant(card, ask) if refusal is None else refusal,)


def _instances(rules: Rules, ask: Ask, card: Card) -> Iterator[Offer]:
    working = card.copy()
    place_loss = ask.policy.place_loss
    loss = None if place_loss is None else place_loss(ask.pod, card.device)
    profiles = instance_profiles(ask, card.device)
    held = ask.constraint.instances
    only = [slot for uuid, slot in held if uuid == card.device.uuid] if held else None
    for _ in range(1 if ask.is_apart else ask.request.count):
        refusal = refuse(rules, ask, working)
        if refusal is not None:
            yield refusal
            return
        memory = memory_wanted(ask.request, card.device)
        found = mig.choose(card.device, working.mig, memory, loss=loss, profiles=profiles, only=only)
        if found is None:
            yield CardMisfit(card.device.uuid, Reason.MIG_INFEASIBLE, asked=memory, total=card.device.memory)
            return
        profile, slot = found
        grant = Grant(
            uuid=card.device.uuid,
            vendor=rules.key,
            memory=profile.memory,
            cores=profile.cores,
            index=card.device.index,
            mig=slot,
        )
        working.take(rules.charge(card.device, grant), slot)
        yield grant


def instance_profiles(ask: Ask, device: Device) -> Sequence[MigProfile]:
    """The profiles of a card in MIG mode that the request accepts. A claim gets the cores that it asks for; other pods
    get those of the smallest profile with their memory."""
    selector = ask.constraint.filter
    if selector is None:
        return device.mig_profiles
    accepted = {profile for profile, published in device.published if selector.answer(published).accepts}
    cores = ask.request.cores
    return [each for each in device.mig_profiles if each.name in accepted and each.cores >= cores]


def fit(rules: Rules, ask: Ask) -> Grants | Misfit:
    """Choose `count` cards: all eligible ones are known before any is taken, so no order hides a fit.

    If the first cards that fit are the ones to take, the others are not checked. The cards of one container are shared
    in one mode: what limits it on one card does not work on a card in another mode.
    """
    if ask.request.count > 1 and len({card.device.mode for card in ask.cards}) > 1:
        return _fit_one_mode(rules, ask)
    if ask.pod.numa_bind or ask.policy.chooses_by_links or ask.is_limited:
        return choose(rules, ask, *eligible(rules, ask))
    taken: list[Grant] = []
    refused: list[CardMisfit] = []
    for card in ask.cards:
        for offer in offers(rules, ask, card):
            if isinstance(offer, CardMisfit):
                refused.append(offer)
                continue
            taken.append(offer)
            if len(taken) == ask.request.count:
                return tuple(taken)
    return verdict(rules, ask, refused, taken=len(taken))


def _fit_one_mode(rules: Rules, ask: Ask) -> Grants | Misfit:
    """The same on the cards of each mode alone, beginning with the mode of the best card."""
    misfits = []
    for mode in dict.fromkeys(card.device.mode for card in ask.cards):
        answer = fit(rules, replace(ask, cards=[card for card in ask.cards if card.device.mode == mode]))
        if not isinstance(answer, Misfit):
            return answer
        misfits.append(answer)
    return Misfit(
        tuple(sorted(sum((Counter(dict(each.counts)) for each in misfits), Counter()).items())),
        total=len(ask.cards),
        vendor=rules.key,
        container=ask.container,
        cards=tuple(card for each in misfits for card in each.cards),
    )


def eligible(rules: Rules, ask: Ask) -> tuple[Fitting, list[CardMisfit]]:
    """The cards that fit by themselves, and why the others do not."""
    return sort_out(ask, lambda card: offers(rules, ask, card))


def sort_out(ask: Ask, judge: Callable[[Card], Iterable[Offer]]) -> tuple[Fitting, list[CardMisfit]]:
    """Every card's offers, grants apart from refusals, in the order of the cards."""
    fitting: Fitting = []
    refused: list[CardMisfit] = []
    for card in ask.cards:
        for offer in judge(card):
            if isinstance(offer, CardMisfit):
                refused.append(offer)
            else:
                fitting.append((card, offer))
    return fitting, refused


def choose(rules: Rules, ask: Ask, fitting: Fitting, refused: Iterable[CardMisfit]) -> Grants | Misfit:
    """The first `count` of the cards that fit by themselves, as far as quota, NUMA and links allow."""
    enough = len(fitting) >= ask.request.count
    groups = _numa_groups(fitting) if ask.pod.numa_bind and enough else [fitting]
    paid = [_within_quota(ask, group) for group in groups]
    choices = [group for group in paid if len(group) >= ask.request.count]
    if choices:
        return _pick_one_group(ask, choices)
    taken = max(paid, key=len)
    return verdict(rules, ask, [*refused, *_refuse_others(ask, groups, taken)], taken=len(taken))


def verdict(rules: Rules, ask: Ask, refused: Iterable[CardMisfit], *, taken: int = 0) -> Misfit:
    """Why the request does not fit the node; `taken` cards would have fitted, but are too few."""
    return cards_misfit(refused, total=len(ask.cards), vendor=rules.key, taken=taken, container=ask.container)


def _within_quota(ask: Ask, fitting: Fitting) -> Fitting:
    """The cards that the quota pays for: all where it pays for any `count` of them, else those it pays for together.

    The best ones first, or the cheapest where that is the only way: a dear card at the front must not hide a fit.
    """
    room, count = ask.room, ask.request.count
    dearest = max((grant.memory for _, grant in fitting), default=0)
    max_cores = max((counted_cores(grant.cores) for _, grant in fitting), default=0)
    if room.allows(dearest * count, max_cores * count):
        return fitting
    best = _paid_one_by_one(ask, fitting)
    if len(best) == count:
        return best
    cheapest = _paid_one_by_one(ask, sorted(fitting, key=lambda pair: (pair[1].memory, pair[1].cores)))
    return cheapest if len(cheapest) == count else best


def _paid_one_by_one(ask: Ask, cards: Fitting) -> Fitting:
    room = ask.room
    paid: Fitting = []
    for card, grant in cards:
        cores = counted_cores(grant.cores)
        if len(paid) < ask.request.count and room.allows(grant.memory, cores):
            paid.append((card, grant))
            room = room.less(grant.memory, cores)
    return paid


def _unpaid(ask: Ask, card: Card, memory: int) -> CardMisfit:
    return CardMisfit(card.device.uuid, Reason.QUOTA_NOT_FIT, asked=memory, free=ask.room.memory)


def _refuse_others(ask: Ask, groups: list[Fitting], taken: Fitting) -> list[CardMisfit]:
    """Why the cards beside the `taken` ones do not help: their NUMA node has too few of them, or the quota is short."""
    count = ask.request.count
    kept = {id(grant) for _, grant in taken}
    refused = []
    for group in groups:
        apart = len(groups) > 1 and len(group) < count
        for card, grant in group:
            if id(grant) in kept:
                continue
            refused.append(
                CardMisfit(card.device.uuid, Reason.NUMA_NOT_FIT, asked=count, free=len(group))
                if apart
                else _unpaid(ask, card, grant.memory)
            )
    return refused


def _pick(ask: Ask, fitting: Fitting) -> Grants:
    count = ask.request.count
    if len(fitting) > count and ask.policy.chooses_by_links:
        chosen = topology.choose([card.device for card, _ in fitting], count)
        return tuple(fitting[i][1] for i in chosen)
    return tuple(grant for _, grant in fitting[:count])


def _numa_groups(fitting: Fitting) -> list[Fitting]:
    """Cards by NUMA node; groups and their members keep the policy's order."""
    firsts: dict[int, int] = {}
    for position, (card, _) in enumerate(fitting):
        firsts.setdefault(card.device.numa, position)
    ordered = sorted(fitting, key=lambda pair: firsts[pair[0].device.numa])
    return [list(group) for _, group in groupby(ordered, key=lambda pair: pair[0].device.numa)]


def _pick_one_group(ask: Ask, groups: list[Fitting]) -> Grants:
    """From the first group, or from the one with the best links where the pod wants those."""
    if not ask.policy.chooses_by_links:
        return _pick(ask, groups[0])
    devices = {card.device.uuid: card.device for group in groups for card, _ in group}
    picks = [_pick(ask, group) for group in groups]
    return max(picks, key=lambda grants: topology.total([devices[grant.uuid] for grant in grants]))
