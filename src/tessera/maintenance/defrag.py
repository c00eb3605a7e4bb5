"""Has the scheduler make the moves of a plan, and shows how far they are.

The scheduler makes them as long as the request lasts: they end before the next step when the command is interrupted.
The same plan can be asked for again at any time. If its moves are being made, they are followed; if they were stopped,
they go on, and moves whose pod is gone are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from tessera.inspect.defragmentation import DefragmentationReport, PlannedMove, PodPlace
from tessera.inspect.installation import FindAddress
from tessera.inspect.state import InspectionError, Json, documents
from tessera.kube.backoff import Backoff
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, KubeError
from tessera.wire.moves import MoveAsked, MovePlace, MovesRequest, MoveStage, MoveUpdate

KIND = "DefragmentationPlan"
TRIES, PAUSES = 5, Backoff(initial=1.0, cap=10.0)
"""if the connection to the scheduler is lost, or another one decides"""


@dataclass(slots=True)
class MoveProgress:
    move: PlannedMove
    stage: MoveStage = MoveStage.WAITING
    reason: str = ""


def read_plan(text: str, *, file: str) -> DefragmentationReport:
    """What `tessera defrag plan -o json` or `-o yaml` printed. Raises InspectionError."""
    found = documents(text, file)
    document = found[0] if len(found) == 1 and isinstance(found[0], dict) else {}
    if document.get("kind") != KIND:
        raise InspectionError(f"{file}: not a plan; make one with tessera defrag plan -o json")
    try:
        return msgspec.convert(_snake(document), DefragmentationReport)
    except msgspec.ValidationError as error:
        raise InspectionError(f"{file}: not a plan that this tessera reads: {error}") from error


def _snake(value: object) -> object:
    """Names in camelCase back to those of the fields."""
    if isinstance(value, dict):
        return {"".join(f"_{c.lower()}" if c.isupper() else c for c in str(k)): _snake(v) for k, v in value.items()}
    return [_snake(each) for each in value] if isinstance(value, list) else value


def moves_request(
    moves: Sequence[PlannedMove], *, interval_s: float, step_timeout_s: float, dry_run: bool
) -> MovesRequest:
    asked = (
        MoveAsked(move.step, move.namespace, move.name, move.uid, _place(move.source), _place(move.target))
        for move in moves
    )
    return MovesRequest(tuple(asked), interval_s, step_timeout_s, dry_run)


def _place(place: PodPlace) -> MovePlace:
    return MovePlace(place.node, place.cards, place.held)


async def make_moves(
    client: KubeClient,
    find: FindAddress,
    moves: Sequence[PlannedMove],
    request: MovesRequest,
    report: Callable[[str], None],
) -> list[MoveProgress]:
    """Until all are made, or stopped. `report` is told of every change, one line each. Raises InspectionError if the
    scheduler does not take the request."""
    found = {move.uid: MoveProgress(move) for move in moves}
    failures, is_begun = 0, False
    while True:
        try:
            if await _follow(client, find, found, request, report):
                return list(found.values())
            is_begun = True
            problem = "the connection ended"
        except KubeError as error:
            problem = str(error)
        except InspectionError as error:
            if not is_begun:
                raise
            problem = str(error).partition("\n")[0]
        failures += 1
        if failures == TRIES:
            raise InspectionError(f"the scheduler cannot be reached: {problem}\nApply the same plan again to go on")
        report(f"{problem}; trying again")
        await asyncio.sleep(PAUSES.delay(failures))


async def _follow(
    client: KubeClient,
    find: FindAddress,
    found: dict[str, MoveProgress],
    request: MovesRequest,
    report: Callable[[str], None],
) -> bool:
    """One request; whether the scheduler has said all."""
    address = await find()
    lines = client.stream_lines(
        address.path,
        duration=len(found) * (request.interval_s + request.step_timeout_s),
        token_header=address.token_header,
        body=msgspec.json.encode(request),
    )
    try:
        async with aclosing(lines):
            async for line in lines:
                update = msgspec.json.decode(line, type=MoveUpdate) if line.strip() else None
                if update is not None and update.is_last:
                    return True
                if update is not None and update.uid in found:
                    _set(found[update.uid], update, report)
    except ApiError as error:
        raise InspectionError(
            f"{address.name} does not make the moves: {error.message.strip() or error}\n{address.help}"
        ) from error
    return False


def _set(progress: MoveProgress, update: MoveUpdate, report: Callable[[str], None]) -> None:
    if (progress.stage, progress.reason) != (update.stage, update.reason):
        progress.stage, progress.reason = update.stage, update.reason
        report(f"{progress.move.namespace}/{progress.move.name}: {update.reason or update.stage.value}")


def moves_document(moves: Sequence[MoveProgress], *, dry_run: bool) -> Json:
    return {
        "dry_run": dry_run,
        "moves": [
            {
                "namespace": each.move.namespace,
                "name": each.move.name,
                "target": each.move.target.text,
                "stage": each.stage.value,
                "reason": each.reason,
            }
            for each in moves
        ],
    }
