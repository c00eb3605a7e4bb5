"""The state that simulated hardware keeps across agent restarts: MIG mode, GPU instances, compute mode.

The rules of real cards apply: an instance sits at a legal placement, instances do not overlap, and each profile has a
maximum count. With a path, every change is on disk before the call returns. One agent at a time may use a path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid5

import msgspec

from tessera.core.devices import MigPlacement
from tessera.host.cards import CardError, ComputeMode, GpuInstanceProfile, MigInstance
from tessera.wire.documents import Report
from tessera.wire.json_source import read_json
from tessera.wire.strict import decode

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


class _Instance(msgspec.Struct, frozen=True, kw_only=True):
    gpu_instance: int
    profile_id: int
    start: int
    size: Annotated[int, msgspec.Meta(ge=1)]


class _Board(msgspec.Struct, frozen=True, kw_only=True):
    mig: bool
    compute_mode: ComputeMode
    instances: tuple[_Instance, ...]


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
                _write(self._path, boards)
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
    made = _instance(uuid, number, profile.profile_id, placement)
    return replace(board, instances=(*board.instances, made)), made


def without_instance(board: Board, gone: MigInstance) -> Board:
    """Raises CardError if a different instance has that id now."""
    for each in board.instances:
        if each.gpu_instance == gone.gpu_instance:
            if (each.profile_id, each.placement) != (gone.profile_id, gone.placement):
                raise CardError(gone.uuid, f"GPU instance {gone.gpu_instance} is now a different one")
            return replace(board, instances=tuple(other for other in board.instances if other != each))
    return board


def _instance(uuid: str, number: int, profile_id: int, placement: MigPlacement) -> MigInstance:
    mig_uuid = simulated_uuid("MIG", f"{uuid}/{number}/{COMPUTE_INSTANCE}")
    return MigInstance(uuid, number, profile_id, placement, COMPUTE_INSTANCE, mig_uuid)


def _read(path: Path) -> dict[str, Board]:
    report = Report(str(path))
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError) as error:
        raise report.fatal(f"cannot be read: {error}") from error
    stored: dict[str, _Board] = decode(read_json(text, report), dict[str, _Board], report=report)
    report.check()
    return {
        uuid: Board(
            mig=board.mig,
            mode=board.compute_mode,
            instances=tuple(
                _instance(uuid, each.gpu_instance, each.profile_id, MigPlacement(each.start, each.size))
                for each in board.instances
            ),
        )
        for uuid, board in stored.items()
    }


def _write(path: Path, boards: Mapping[str, Board]) -> None:
    stored = {
        uuid: _Board(
            mig=board.mig,
            compute_mode=board.mode,
            instances=tuple(
                _Instance(
                    gpu_instance=each.gpu_instance,
                    profile_id=each.profile_id,
                    start=each.placement.start,
                    size=each.placement.size,
                )
                for each in board.instances
            ),
        )
        for uuid, board in boards.items()
    }
    written = path.with_name(f".{path.name}.new")
    written.write_bytes(msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n")
    # A reader sees the old state or the new one.
    os.replace(written, path)
