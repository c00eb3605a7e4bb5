"""Takes away what an earlier sharing mode left on the node's cards, as soon as nobody needs it.

A card whose MPS daemon is still there refuses every other process, so a node that no longer shares by MPS must not keep
one. Containers that were there before this began may be its clients: their cards wait until they have ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import ComputeModes
from tessera.node.modes.mps_control import MpsProgram
from tessera.node.modes.mps_retiring import retire_all
from tessera.node.settings import AgentSettings
from tessera.node.settling import Claims

log = structlog.get_logger(__name__)

AGAIN_S = 30.0


async def retire_mps(settings: AgentSettings, modes: ComputeModes, claims: Claims) -> None:
    """Until nothing is left, or cancelled."""
    await claims.pods.ready.wait()
    program = MpsProgram(environ=settings.environ)
    known = claims.live_claims()
    before = frozenset(known or ())
    told: dict[str, str] = {}
    while True:
        live = claims.live_claims()
        if known is None or live is None:
            # Whose cards they are is not known: all wait.
            known, before = live, frozenset(live or ())
        else:
            left = await _retired(settings, modes, program, keep=_cards([each for each in live if each in before]))
            if not left:
                return
            if left != told:
                log.warning("MPS daemons of an earlier mode stay for now", cards=left)
            told = left
        await asyncio.sleep(AGAIN_S)


async def _retired(
    settings: AgentSettings, modes: ComputeModes, program: MpsProgram, *, keep: frozenset[str]
) -> dict[str, str]:
    try:
        return await retire_all(settings.paths.mps, modes, program=program, keep=keep)
    except OSError as error:
        return {str(settings.paths.mps): str(error)}


def _cards(claims: Sequence[Claim]) -> frozenset[str]:
    return frozenset(each.uuid for claim in claims for each in claim.slices)
