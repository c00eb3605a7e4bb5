"""Takes away what an earlier configuration left on the node, as soon as nobody needs it.

A card whose MPS daemon is still there refuses every other process, one in MIG mode can only be used in parts, and a
runtime finds devices in CDI specs that nobody keeps true. Containers that were there before this began may need them:
what is theirs waits until they have ended. Nothing that the agent does not own is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import structlog

from tessera.node.handover.claims import Claim
from tessera.node.inventory.cards import ComputeModes, Hardware, MigHardware
from tessera.node.modes.cdi_record import FILE, CdiRecord
from tessera.node.modes.mig_cleanup import retire_mig as retire_instances
from tessera.node.modes.mig_release import holders_of
from tessera.node.modes.mps_cleanup import retire_all
from tessera.node.modes.mps_control import MpsProgram
from tessera.node.reconciler import Claims
from tessera.node.settings import AgentSettings

log = structlog.get_logger(__name__)

AGAIN_S = 30.0

Attempt = Callable[[Sequence[Claim], Sequence[Claim]], Awaitable[Mapping[str, str]]]
"""takes away what neither of these needs: all live claims, and those of them that were there at first; what stays, and
why. Raises OSError"""


async def retire(settings: AgentSettings, hardware: Hardware, claims: Claims) -> None:
    """Everything that is not configured now. Until nothing is left, or cancelled."""
    async with asyncio.TaskGroup() as group:
        if settings.node.mode != "mps":
            group.create_task(retire_mps(settings, hardware, claims))
        if settings.node.mode != "mig":
            group.create_task(retire_mig(settings, hardware, claims))
        if not any(each.is_cdi for each in settings.strategies):
            group.create_task(retire_cdi(settings, claims))


async def retire_mps(settings: AgentSettings, modes: ComputeModes, claims: Claims) -> None:
    program = MpsProgram(environ=settings.environ)

    async def attempt(_live: Sequence[Claim], old: Sequence[Claim]) -> Mapping[str, str]:
        return await retire_all(settings.paths.mps, modes, program=program, keep=_cards(old))

    await _until_gone(attempt, claims, what="MPS daemons of an earlier mode", where=settings.paths.mps)


async def retire_mig(settings: AgentSettings, hardware: MigHardware, claims: Claims) -> None:
    async def attempt(live: Sequence[Claim], _old: Sequence[Claim]) -> Mapping[str, str]:
        return await retire_instances(settings.paths.state, hardware, holders_of(live))

    await _until_gone(attempt, claims, what="MIG of an earlier mode", where=settings.paths.state)


async def retire_cdi(settings: AgentSettings, claims: Claims) -> None:
    record = settings.paths.state / FILE

    async def attempt(_live: Sequence[Claim], old: Sequence[Claim]) -> Mapping[str, str]:
        if not await asyncio.to_thread(record.exists):
            return {}
        if old:
            return {str(record): "containers that began with these specs are there"}
        await asyncio.to_thread(CdiRecord(settings.paths.state).retire)
        return {}

    await _until_gone(attempt, claims, what="CDI specs of an earlier strategy", where=record)


async def _until_gone(attempt: Attempt, claims: Claims, *, what: str, where: Path) -> None:
    await claims.pods.ready.wait()
    known = claims.live_claims()
    before = _uids(known)
    told: Mapping[str, str] = {}
    while True:
        live = claims.live_claims()
        if known is None or live is None:
            # Who needs what is not known: all wait.
            known, before = live, _uids(live)
        else:
            left = await _left(attempt, live, [each for each in live if each.pod.uid in before], where)
            if not left:
                return
            if left != told:
                log.warning(f"{what} stay for now", left=left)
            told = left
        await asyncio.sleep(AGAIN_S)


async def _left(attempt: Attempt, live: Sequence[Claim], old: Sequence[Claim], where: Path) -> Mapping[str, str]:
    try:
        return await attempt(live, old)
    except OSError as error:
        return {str(where): str(error)}


def _uids(claims: Sequence[Claim] | None) -> frozenset[str]:
    return frozenset(claim.pod.uid for claim in claims or ())


def _cards(claims: Sequence[Claim]) -> frozenset[str]:
    return frozenset(each.uuid for claim in claims for each in claim.slices)
