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
    if not ask.room.allows(memory, ask.request.cores):
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
    eligible: list[tuple[Card, Grant]] = []
    for card in ask.cards:
        for offer in offers(rules, ask, card):
            if isinstance(offer, CardMisfit):
                refused.append(offer)
            else:
                eligible.append((card, offer))
    count = ask.request.count
    affordable, over = _within_quota(ask, eligible)
    refused.extend(over)
    if len(affordable) >= count:
        if not ask.pod.numa_bind:
            return _pick(ask, affordable)
        bound = _pick_one_numa(ask, affordable)
        if bound is not None:
            return bound
        return _numa_misfit(rules, ask, affordable, refused)
    return cards_misfit(refused, total=len(ask.cards), vendor=rules.key, taken=len(affordable), container=ask.container)


def _within_quota(ask: Ask, eligible: list[tuple[Card, Grant]]) -> tuple[list[tuple[Card, Grant]], list[CardMisfit]]:
    """Keep the best cards that the quota pays for together.

    Only where the quota does not pay for `count` of them: with enough room every eligible card stays a choice.
    """
    room, count = ask.room, ask.request.count
    if room.memory is None and room.cores is None:
        return eligible, []
    dearest = max((grant.memory for _, grant in eligible), default=0)
    most_cores = max((grant.cores for _, grant in eligible), default=0)
    if room.allows(dearest * count, most_cores * count):
        return eligible, []
    kept: list[tuple[Card, Grant]] = []
    over: list[CardMisfit] = []
    for card, grant in eligible:
        if len(kept) < count and room.allows(grant.memory, grant.cores):
            kept.append((card, grant))
            room = room.less(grant.memory, grant.cores)
        else:
            over.append(CardMisfit(card.device.uuid, Reason.QUOTA_NOT_FIT, asked=grant.memory, free=room.memory))
    return (kept, []) if len(kept) == count else (kept, over)


def _pick(ask: Ask, eligible: list[tuple[Card, Grant]]) -> Grants:
    count = ask.request.count
    if len(eligible) > count and "topology-aware" in ask.words:
        chosen = topology.choose([card.device for card, _ in eligible], count)
        return tuple(eligible[i][1] for i in chosen)
    return tuple(grant for _, grant in eligible[:count])


def _numa_groups(eligible: list[tuple[Card, Grant]]) -> list[list[tuple[Card, Grant]]]:
    """Cards by NUMA node; groups and their members keep the policy's order."""
    firsts: dict[int, int] = {}
    for position, (card, _) in enumerate(eligible):
        firsts.setdefault(card.device.numa, position)
    ordered = sorted(eligible, key=lambda pair: firsts[pair[0].device.numa])
    return [list(group) for _, group in groupby(ordered, key=lambda pair: pair[0].device.numa)]


def _pick_one_numa(ask: Ask, eligible: list[tuple[Card, Grant]]) -> Grants | None:
    groups = [group for group in _numa_groups(eligible) if len(group) >= ask.request.count]
    if not groups:
        return None
    if "topology-aware" not in ask.words:
        return _pick(ask, groups[0])
    by_uuid = {card.device.uuid: card.device for card, _ in eligible}
    picks = [_pick(ask, group) for group in groups]
    return max(picks, key=lambda grants: topology.total([by_uuid[g.uuid] for g in grants]))


def _numa_misfit(rules: Rules, ask: Ask, eligible: list[tuple[Card, Grant]], refused: list[CardMisfit]) -> Misfit:
    """Enough cards, but no NUMA node has enough: the largest group counts as taken, the rest as `NumaNotFit`."""
    groups = _numa_groups(eligible)
    largest = max(groups, key=len)
    apart = [
        CardMisfit(card.device.uuid, Reason.NUMA_NOT_FIT, asked=ask.request.count, free=len(group))
        for group in groups
        if group is not largest
        for card, _ in group
    ]
    return cards_misfit(
        [*refused, *apart], total=len(ask.cards), vendor=rules.key, taken=len(largest), container=ask.container
    )
