"""The state that simulated hardware keeps across agent restarts: MIG mode, GPU instances, compute mode.

The rules of real cards apply: an instance sits at a legal placement, instances do not overlap, and each profile has a
maximum count. With a path, every change is on disk before the call returns. One agent at a time may use a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID, uuid5

import msgspec

from tessera.core.model.devices import MigPlacement
from tessera.host.atomic_file import replace_file
from tessera.host.cards import CardError, ComputeMode, GpuInstanceProfile, MigInstance
from tessera.wire.config_file import unreadable

NAMESPACE = UUID("6b0f5d0e-64a7-4b9c-8a5d-0a3f4d7c2b11")
"""of all simulated uuids; any fixed value does"""

COMPUTE_INSTANCE = 0
"""id of the one compute instance that an instance gets"""


@dataclass(frozen=True, slots=True)
class Board:
    """One card."""

    mig: bool = False
    mode: ComputeMode = ComputeMode.DEFAULT
    instances: tuple[MigInstance, ...] = ()


def simulated_uuid(prefix: str, what: str) -> str:
    """Always the same for the same thing."""
    return f"{prefix}-{uuid5(NAMESPACE, what)}"


class Boards:
    """All cards of a node, by uuid."""

    def __init__(self, path: Path | None = None) -> None:
        """A missing file is fine. Raises ConfigError if the file is invalid."""
        self._path = path
        self._boards: Mapping[str, Board] = {} if path is None else _read(path)

    def board(self, uuid: str, *, mig: bool = False) -> Board:
        """`mig` is the initial MIG mode of a card."""
        return self._boards.get(uuid) or Board(mig=mig)

    def put(self, uuid: str, board: Board) -> None:
        """Raises CardError."""
        boards = {**self._boards, uuid: board}
        if self._path is not None:
            try:
                replace_file(self._path, msgspec.json.format(msgspec.json.encode(boards), indent=2) + b"\n")
            except OSError as error:
                raise CardError(uuid, f"its state cannot be kept in {self._path}: {error.strerror}") from error
        self._boards = boards


def with_instance(
    board: Board, *, uuid: str, profile: GpuInstanceProfile, placement: MigPlacement
) -> tuple[Board, MigInstance]:
    """Returns the board with a new instance, and the instance. Raises CardError."""
    if not board.mig:
        raise CardError(uuid, "MIG mode is off")
    if placement not in profile.placements:
        raise CardError(uuid, f"{profile.name} cannot be put at {placement.start}, {placement.size} slices wide")
    if any(placement.overlaps(each.placement) for each in board.instances):
        raise CardError(uuid, f"no room for {profile.name} at slice {placement.start}: another instance is there")
    if sum(each.profile_id == profile.profile_id for each in board.instances) >= profile.instances:
        raise CardError(uuid, f"no more than {profile.instances} of {profile.name} fit")
    taken = {each.gpu_instance for each in board.instances}
    number = next(n for n in range(len(taken) + 1) if n not in taken)
    mig_uuid = simulated_uuid("MIG", f"{uuid}/{number}/{COMPUTE_INSTANCE}")
    made = MigInstance(uuid, number, profile.profile_id, placement, COMPUTE_INSTANCE, mig_uuid)
    return replace(board, instances=(*board.instances, made)), made


def without_instance(board: Board, gone: MigInstance) -> Board:
    """Raises CardError if a different instance has that id now."""
    for each in board.instances:
        if each.gpu_instance == gone.gpu_instance:
            if (each.profile_id, each.placement) != (gone.profile_id, gone.placement):
                raise CardError(gone.uuid, f"GPU instance {gone.gpu_instance} is now a different one")
            return replace(board, instances=tuple(other for other in board.instances if other != each))
    return board


def _read(path: Path) -> dict[str, Board]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Board])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise unreadable(path, str(error)) from error
