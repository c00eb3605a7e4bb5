"""Slices of Kunlun cards (vXPU, key `XPU`), on cards that a node agent registers.

A card is cut into slices of one size only. Which cards may go together is in `layout`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.fit import card_checks
from tessera.core.fit.device_rules import Ask, Rules
from tessera.core.model.grants import Grant, Grants
from tessera.core.model.misfits import CardMisfit, Misfit, Reason
from tessera.core.model.node_info import Card
from tessera.core.model.requests import Request
from tessera.vendors.base import AnnotationKeys, Vendor
from tessera.vendors.drafts import BadRequest, ContainerDraft, Denied, PodDraft, Resources
from tessera.vendors.kunlun.layout import AVOID_UUIDS, CARD_MEMORY, USE_UUIDS, fit_layout, warn_of_count
from tessera.vendors.parts.card_choice import refuse_unpaid, refuse_used
from tessera.vendors.parts.card_shares import WHOLE_MEMORY, cards_asked, memory_of
from tessera.wire.keys import NODE_LOCK

SLICES = (24576, 49152, CARD_MEMORY)
"""MiB; memory is rounded up to one of these"""


class Vxpu(Vendor):
    """Slices of cards. A card that registers no number of slots or no cores is limited by its memory alone."""

    key = "XPU"
    keys = AnnotationKeys(
        register="hami.io/node-register-xpu",
        handshake="hami.io/node-handshake-xpu",
        to_allocate="hami.io/xpu-devices-to-allocate",
        allocated="hami.io/xpu-devices-allocated",
        use_uuids=USE_UUIDS,
        avoid_uuids=AVOID_UUIDS,
        lock=NODE_LOCK,
    )

    def mutate(self, container: ContainerDraft, pod: PodDraft) -> bool | Denied:
        warn_of_count(container, pod, self.names.count)
        asks = super().mutate(container, pod)
        if asks is True and container.text(self.names.memory, limits_only=True) is not None:
            memory = self._slice(container)
            # A value that cannot be rounded stays as written, so the refusal can show it.
            if isinstance(memory, int):
                container.set_both(self.names.memory, memory)
        return asks

    def least_memory(self, annotations: Mapping[str, str]) -> int:
        return 0

    def request(self, resources: Resources) -> Request | BadRequest | None:
        count = cards_asked(resources, self.names.count, unit="cards")
        if count is None or isinstance(count, BadRequest):
            return count
        if resources.text(self.names.memory) is None:
            return Request(vendor=self.key, count=count, memory=CARD_MEMORY, percent=WHOLE_MEMORY, cores=100)
        memory = self._slice(resources)
        if isinstance(memory, BadRequest):
            return memory
        return Request(vendor=self.key, count=count, memory=memory, cores=memory * 100 // CARD_MEMORY)

    def _slice(self, resources: Resources) -> int | BadRequest:
        """The requested memory, rounded up to a slice."""
        memory = memory_of(resources, self.names.memory)
        if isinstance(memory, BadRequest):
            return memory
        found = next((size for size in SLICES if memory <= size), None)
        advice = f"a card has {CARD_MEMORY} MiB, write at most that"
        return found or BadRequest(self.names.memory, str(memory), advice)

    def fit(self, ask: Ask) -> Grants | Misfit:
        return fit_layout(self, ask, lambda card: self._judge(card, ask))

    def _judge(self, card: Card, ask: Ask) -> Grant | CardMisfit:
        grant = self.grant(card, ask)
        return (
            card_checks.refuse_identity(self, ask, card)
            or _refuse_sharing(self, ask, card)
            or refuse_unpaid(ask, card, grant)
            or _refuse_slice(card, grant)
            or grant
        )


def _refuse_sharing(rules: Rules, ask: Ask, card: Card) -> CardMisfit | None:
    by_slots = card.device.slots > 0
    used = refuse_used(card) if not by_slots and ask.policy.unused_cards_only else None
    return used or card_checks.refuse_sharing(rules, ask, card, by_slots=by_slots)


def _refuse_slice(card: Card, grant: Grant) -> CardMisfit | None:
    device = card.device
    short = card_checks.refuse_memory(card, grant.memory)
    if short is not None:
        return short
    if card.used_memory != card.used * grant.memory:
        return CardMisfit(device.uuid, Reason.CUSTOM_RULE, asked=grant.memory, total=device.memory)
    return card_checks.refuse_cores(card, grant.cores) if device.cores > 0 else None
