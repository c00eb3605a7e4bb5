"""The fit rule that most vendors share: check card by card, then choose.

The order of the checks is visible on the wire (it decides which reason a card shows). The checks of one card never
depend on another card, which keeps reasons independent of the walking order and lets `arrays` judge many nodes at
once with the same result; only quota and MIG look at what was taken before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from tessera.core import mig, topology
from tessera.core.cards import Card
from tessera.core.devices import MIG
from tessera.core.grants import Grant, Grants
from tessera.core.misfits import CardMisfit, Misfit, Reason, cards_misfit
from tessera.core.requests import WHOLE_CARD_CORES, Request

if TYPE_CHECKING:
    from tessera.core.rules import Ask, Rules

Fitting = list[tuple[Card, Grant]]
"""cards that would do by themselves, with what they would give, best first"""


def cores_on(request: Request, total: int) -> int:
    """Cores a request takes on a card of `total`: asking for the whole card means the card's own total."""
    return total if request.cores >= min(WHOLE_CARD_CORES, total) > 0 else request.cores


def refuse_identity(rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    """Checks that look at the card itself, not at its use."""
    device = card.device
    if not device.healthy or card.held:
        return CardMisfit(device.uuid, Reason.CARD_NOT_HEALTHY)
    if card.cordoned and rules.honours_cordon:
        return CardMisfit(device.uuid, Reason.CARD_CORDONED)
    if not rules.accepts_model(device, ask.constraint):
        return CardMisfit(device.uuid, Reason.CARD_TYPE_MISMATCH)
    if not rules.accepts_uuid(device.uuid, ask.constraint):
        return CardMisfit(device.uuid, Reason.CARD_UUID_MISMATCH)
    return None


def refuse_sharing(ask: Ask, card: Card) -> CardMisfit | None:
    """Free slots and the mutex policy."""
    device = card.device
    if device.slots <= card.used:
        return CardMisfit(
            device.uuid, Reason.CARD_SLOTS_EXHAUSTED, asked=1, free=device.slots - card.used, total=device.slots
        )
    if card.used > 0 and "mutex" in ask.words:
        return CardMisfit(device.uuid, Reason.EXCLUSIVE_CONFLICT, asked=device.slots, free=device.slots - card.used)
    return None


def refuse_capacity(request: Request, card: Card) -> CardMisfit | None:
    """Memory, cores and exclusive use."""
    device = card.device
    memory = request.memory_on(device.memory)
    if card.free_memory < memory:
        return CardMisfit(
            device.uuid, Reason.CARD_INSUFFICIENT_MEMORY, asked=memory, free=card.free_memory, total=device.memory
        )
    cores = cores_on(request, device.cores)
    if card.free_cores < cores:
        return CardMisfit(
            device.uuid, Reason.CARD_INSUFFICIENT_CORES, asked=cores, free=card.free_cores, total=device.cores
        )
    if card.used > 0 and 0 < device.cores <= cores:
        return CardMisfit(device.uuid, Reason.EXCLUSIVE_CONFLICT, asked=cores, free=card.free_cores, total=device.cores)
    if cores == 0 and 0 < device.cores <= card.used_cores:
        return CardMisfit(device.uuid, Reason.CARD_CORES_EXHAUSTED, asked=0, free=0, total=device.cores)
    return None


def refuse(rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    """All checks of one card that need no knowledge of other cards."""
    early = refuse_identity(rules, ask, card) or refuse_sharing(ask, card)
    if early is not None:
        return early
    memory = ask.request.memory_on(card.device.memory)
    if not ask.room.allows(memory, min(ask.request.cores, WHOLE_CARD_CORES)):
        return CardMisfit(card.device.uuid, Reason.QUOTA_NOT_FIT, asked=memory, free=ask.room.memory)
    late = refuse_capacity(ask.request, card)
    if late is None and card.device.mode != MIG:
        custom = rules.custom_rule(card, ask)
        if custom is not None:
            return CardMisfit(card.device.uuid, custom)
    return late


def offers(rules: Rules, ask: Ask, card: Card) -> Iterator[Grant | CardMisfit]:
    """What one card offers, best first: a grant, or several from a MIG card; ends after a refusal."""
    if card.device.mode != MIG:
        refusal = refuse(rules, ask, card)
        yield refusal if refusal is not None else rules.grant(card, ask)
        return
    working = card.copy()
    for _ in range(ask.request.count):
        refusal = refuse(rules, ask, working)
        if refusal is not None:
            yield refusal
            return
        memory = ask.request.memory_on(card.device.memory)
        found = mig.choose(card.device, working.mig, memory)
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


def fit(rules: Rules, ask: Ask) -> Grants | Misfit:
    """Choose `count` cards: all eligible ones are known before any is taken, so no order hides a fit."""
    refused: list[CardMisfit] = []
    eligible: Fitting = []
    for card in ask.cards:
        for offer in offers(rules, ask, card):
            if isinstance(offer, CardMisfit):
                refused.append(offer)
            else:
                eligible.append((card, offer))
    enough = len(eligible) >= ask.request.count
    groups = _numa_groups(eligible) if ask.pod.numa_bind and enough else [eligible]
    paid = [_within_quota(ask, group) for group in groups]
    choices = [group for group in paid if len(group) >= ask.request.count]
    if choices:
        return _pick_one_group(ask, choices)
    taken = max(paid, key=len)
    apart = _refuse_others(ask, groups, taken)
    return cards_misfit(
        [*refused, *apart], total=len(ask.cards), vendor=rules.key, taken=len(taken), container=ask.container
    )


def _within_quota(ask: Ask, eligible: Fitting) -> Fitting:
    """The cards that the quota pays for: all where it pays for any `count` of them, else those it pays for together.

    The best ones first, or the cheapest where that is the only way: a dear card at the front must not hide a fit.
    """
    room, count = ask.room, ask.request.count
    dearest = max((grant.memory for _, grant in eligible), default=0)
    most_cores = max((grant.cores for _, grant in eligible), default=0)
    if room.allows(dearest * count, most_cores * count):
        return eligible
    best = _paid_one_by_one(ask, eligible)
    if len(best) == count:
        return best
    cheapest = _paid_one_by_one(ask, sorted(eligible, key=lambda pair: (pair[1].memory, pair[1].cores)))
    return cheapest if len(cheapest) == count else best


def _paid_one_by_one(ask: Ask, cards: Fitting) -> Fitting:
    room = ask.room
    paid: Fitting = []
    for card, grant in cards:
        if len(paid) < ask.request.count and room.allows(grant.memory, grant.cores):
            paid.append((card, grant))
            room = room.less(grant.memory, grant.cores)
    return paid


def _refuse_others(ask: Ask, groups: list[Fitting], taken: Fitting) -> list[CardMisfit]:
    """Why the cards beside the `taken` ones do not help: their NUMA node has too few of them, or the quota is short."""
    count, room = ask.request.count, ask.room
    kept = {id(grant) for _, grant in taken}
    refused = []
    for group in groups:
        apart = len(groups) > 1 and len(group) < count
        for card, grant in group:
            if id(grant) in kept:
                continue
            uuid = card.device.uuid
            refused.append(
                CardMisfit(uuid, Reason.NUMA_NOT_FIT, asked=count, free=len(group))
                if apart
                else CardMisfit(uuid, Reason.QUOTA_NOT_FIT, asked=grant.memory, free=room.memory)
            )
    return refused


def _pick(ask: Ask, eligible: Fitting) -> Grants:
    count = ask.request.count
    if len(eligible) > count and "topology-aware" in ask.words:
        chosen = topology.choose([card.device for card, _ in eligible], count)
        return tuple(eligible[i][1] for i in chosen)
    return tuple(grant for _, grant in eligible[:count])


def _numa_groups(eligible: Fitting) -> list[Fitting]:
    """Cards by NUMA node; groups and their members keep the policy's order."""
    firsts: dict[int, int] = {}
    for position, (card, _) in enumerate(eligible):
        firsts.setdefault(card.device.numa, position)
    ordered = sorted(eligible, key=lambda pair: firsts[pair[0].device.numa])
    return [list(group) for _, group in groupby(ordered, key=lambda pair: pair[0].device.numa)]


def _pick_one_group(ask: Ask, groups: list[Fitting]) -> Grants:
    """From the first group, or from the one with the best links where the pod wants those."""
    if "topology-aware" not in ask.words:
        return _pick(ask, groups[0])
    devices = {card.device.uuid: card.device for group in groups for card, _ in group}
    picks = [_pick(ask, group) for group in groups]
    return max(picks, key=lambda grants: topology.total([devices[grant.uuid] for grant in grants]))
