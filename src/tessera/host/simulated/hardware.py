"""Simulated cards that behave like real ones, with the state that they keep: MIG mode, GPU instances, compute mode.

Scanning, listening and changing cards may each run in a thread. The rules of real cards apply: an instance sits at a
legal placement, instances do not overlap, and each profile has a maximum count. With a path, every change of the state
is on disk before the call returns. One agent at a time may use a path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tessera.core.model.devices import MigPlacement
from tessera.host.atomic_file import read_json, replace_file
from tessera.host.cards import (
    CardError,
    CardEvent,
    ComputeMode,
    Found,
    GpuInstanceProfile,
    InventoryError,
    Links,
    MigInstance,
    UnreadableCard,
)
from tessera.host.simulated.description import (
    Script,
    SimulatedCard,
    SimulationDescription,
    Source,
    WatchedFile,
    cards_of,
    links_of,
    load_description,
    script_of,
)
from tessera.host.simulated.models import simulated_uuid
from tessera.wire.config_file import unreadable

COMPUTE_INSTANCE = 0
"""id of the one compute instance that an instance gets"""

NOT_FOUND = "there is no such card"
IN_USE = "in use by another client"


@dataclass(frozen=True, slots=True)
class Board:
    """One card."""

    mig: bool = False
    mode: ComputeMode = ComputeMode.DEFAULT
    instances: tuple[MigInstance, ...] = ()


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
        return read_json(path, dict[str, Board]) or {}
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error)) from error


class SimulatedHardware:
    """A `Hardware`."""

    def __init__(
        self,
        source: Source,
        *,
        node_name: str,
        state: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source` returns the current description; `state` is a file that keeps MIG instances across restarts."""
        self._source = source
        self._node_name = node_name
        self._boards = Boards(state)
        self._clock = clock
        self._began = clock()
        self._script = Script()
        self._scripted: SimulationDescription | None = None
        self._listened: frozenset[str] = frozenset()
        self._overrides: dict[str, str] = {}
        """why cards cannot be read, by uuid, whatever the description says"""

    def scan(self) -> list[Found]:
        description = self._described()
        return [self._found(card, description) for card in self._cards(description)]

    def links(self, uuids: Sequence[str]) -> dict[tuple[str, str], Links]:
        description = self._described()
        cards = self._cards(description)
        for uuid in uuids:
            self._reachable(uuid)
        wanted = set(uuids)
        return {pair: links for pair, links in links_of(description, cards).items() if wanted.issuperset(pair)}

    def listen(self, uuids: Sequence[str]) -> dict[str, str]:
        self._described()
        problems = {}
        for uuid in uuids:
            try:
                deaf = self._reachable(uuid).group.deaf
            except CardError as error:
                deaf = error.problem
            if deaf:
                problems[uuid] = deaf
        self._listened = frozenset(uuids) - problems.keys()
        return problems

    def wait(self, timeout: float) -> CardEvent | None:
        description = self._described()
        if description != self._scripted:
            # Only the listener reads scripts, so no event happens twice.
            self._scripted = description
            self._script.read(script_of(description, self._cards(description)), now=self._clock())
        due = self._script.next(self._listened, now=self._clock())
        if due is None:
            self._script.sleep(timeout, self._listened, now=self._clock())
            due = self._script.next(self._listened, now=self._clock())
        if due is None:
            return None
        if due.lost and due.event.uuid is not None:
            self._overrides[due.event.uuid] = due.lost
        return due.event

    def close(self) -> None:
        self._script.wake()

    def mig_enabled(self, uuid: str) -> bool:
        return self._board(self._reachable(uuid)).mig

    def enable_mig(self, uuid: str) -> None:
        self._switch(uuid, on=True)

    def disable_mig(self, uuid: str) -> None:
        self._switch(uuid, on=False)

    def _switch(self, uuid: str, *, on: bool) -> None:
        card = self._reachable(uuid)
        board = self._board(card)
        word = "enable" if on else "disable"
        if not card.facts.mig_capable:
            raise CardError(uuid, "mig mode: Not Supported")
        if board.mig == on:
            return
        if board.instances:
            raise CardError(uuid, "mig mode cannot be disabled while GPU instances exist")
        if self.is_busy(uuid) or not card.group.resetless:
            raise CardError(uuid, f"mig mode {word} would need a GPU reset ({IN_USE})")
        self._boards.put(uuid, replace(board, mig=on))

    def instances(self, uuid: str) -> list[MigInstance]:
        return sorted(self._board(self._reachable(uuid)).instances, key=lambda each: each.placement)

    def create(self, uuid: str, profile: GpuInstanceProfile, placement: MigPlacement) -> MigInstance:
        card = self._reachable(uuid)
        if profile not in card.facts.mig_profiles:
            raise CardError(uuid, f"{profile.name} is no profile of this card")
        board, made = with_instance(self._board(card), uuid=uuid, profile=profile, placement=placement)
        self._boards.put(uuid, board)
        return made

    def destroy(self, instance: MigInstance) -> None:
        board = self._board(self._reachable(instance.uuid))
        left = without_instance(board, instance)
        if left != board:
            self._boards.put(instance.uuid, left)

    def is_busy(self, uuid: str) -> bool:
        try:
            card = self._reachable(uuid)
        except InventoryError:
            return True
        return card.group.busy

    def compute_mode(self, uuid: str) -> ComputeMode:
        return self._board(self._reachable(uuid)).mode

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        self._boards.put(uuid, replace(self._board(self._reachable(uuid)), mode=mode))

    def _described(self) -> SimulationDescription:
        description = self._source()
        if description.problem:
            raise InventoryError(description.problem)
        return description

    def _cards(self, description: SimulationDescription) -> tuple[SimulatedCard, ...]:
        return cards_of(description, node_name=self._node_name)

    def _found(self, card: SimulatedCard, description: SimulationDescription) -> Found:
        problem = self._problem(card, description)
        if problem:
            return UnreadableCard(card.facts.index, problem, card.facts.uuid)
        return replace(card.facts, mig_enabled=self._board(card).mig)

    def _problem(self, card: SimulatedCard, description: SimulationDescription) -> str:
        override = self._overrides.get(card.facts.uuid)
        if override is not None:
            return override
        passed = self._clock() - self._began
        scripted = (each for each in description.problems if each.card == card.facts.index and each.is_at(passed))
        return card.group.problem or next((each.problem for each in scripted), "")

    def _reachable(self, uuid: str) -> SimulatedCard:
        description = self._described()
        for card in self._cards(description):
            if card.facts.uuid == uuid:
                problem = self._problem(card, description)
                if problem:
                    raise CardError(uuid, problem)
                return card
        raise CardError(uuid, NOT_FOUND)

    def _board(self, card: SimulatedCard) -> Board:
        return self._boards.board(card.facts.uuid, mig=card.group.mig)


def no_cards() -> SimulatedHardware:
    """The hardware of a node without cards."""
    return SimulatedHardware(lambda: SimulationDescription(cards=()), node_name="")


def simulated_hardware(path: Path, *, node_name: str) -> SimulatedHardware:
    """Simulates the cards of a file, which is read again when it changes. Raises ConfigError."""
    description = load_description(path)
    state = path.parent / description.state if description.state else None
    return SimulatedHardware(WatchedFile(path, description), node_name=node_name, state=state)
