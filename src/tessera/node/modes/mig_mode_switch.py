"""MIG mode of cards: turned on where nobody uses the card, turned off again only where the agent turned it on.

A card that cannot be switched keeps its reason until it can; pods that want it are refused with that reason. Turning it
on is written down before it is done. Runs in the one thread that changes the hardware.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from tessera.node.fleet import CardState
from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import CardError, InventoryError, MigHardware
from tessera.node.modes.mig_records import Records
from tessera.wire.mig import split_legacy_uuid

log = structlog.get_logger(__name__)

AGAIN_S = 30.0
"""seconds until a card that could not be switched is tried again by itself"""


def shared_without_mig(claims: Iterable[Claim]) -> frozenset[str]:
    """Cards on which live pods have slices that are no MIG instances: switching would take these pods' card away."""
    return frozenset(split_legacy_uuid(entry.uuid)[0] for claim in claims if not claim.mig for entry in claim.slices)


class Switching:
    def __init__(self, hardware: MigHardware, records: Records) -> None:
        self._hardware = hardware
        self._records = records
        self._problems: dict[str, str] = {}
        """by card, as they were logged"""
        self._not_before: dict[str, float] = {}

    def keep_ready(self, card: CardState, *, shared: Collection[str], now: float) -> None:
        """Like `make_ready`, but not over and over where it was in vain; `now` in seconds of any steady clock."""
        uuid = card.facts.uuid
        if card.facts.mig_enabled or now < self._not_before.get(uuid, now):
            return
        if self.make_ready(card, shared=shared):
            self._not_before[uuid] = now + AGAIN_S

    def make_ready(self, card: CardState, *, shared: Collection[str]) -> str:
        """Turn MIG on where it is off; empty, or why the card cannot be used."""
        uuid = card.facts.uuid
        problem = self._problem(card, shared)
        if problem and self._problems.get(uuid) != problem:
            log.warning("a card cannot be used for MIG", card=uuid, problem=problem)
        self._problems[uuid] = problem
        return problem

    def restore(self, cards: Collection[str]) -> None:
        """Turn MIG off where the agent turned it on and nobody uses it any more."""
        for uuid in sorted(self._records.switched & set(cards)):
            try:
                if self._hardware.mig_enabled(uuid):
                    if self._hardware.instances(uuid) or self._hardware.is_busy(uuid):
                        log.info("a card stays in MIG mode: it is in use", card=uuid)
                        continue
                    self._hardware.disable_mig(uuid)
                self._records.switch(uuid, on=False)
            except (InventoryError, OSError) as error:
                log.warning("a card stays in MIG mode", card=uuid, error=str(error))

    def _problem(self, card: CardState, shared: Collection[str]) -> str:
        uuid = card.facts.uuid
        if not card.facts.mig_capable:
            return "the card cannot do MIG"
        try:
            if self._hardware.mig_enabled(uuid):
                return ""
            if uuid in shared:
                return "MIG is off, and pods share the card without it; drain the node"
            if self._hardware.is_busy(uuid):
                return "MIG is off, and a process uses the card"
            self._turn_on(uuid)
        except CardError as error:
            return error.problem
        except (InventoryError, OSError) as error:
            return str(error)
        log.info("MIG is turned on", card=uuid)
        return ""

    def _turn_on(self, uuid: str) -> None:
        self._records.switch(uuid, on=True)
        try:
            self._hardware.enable_mig(uuid)
        except InventoryError:
            # Whoever resets the card afterwards turned it on, and may want it so.
            self._records.switch(uuid, on=False)
            raise
