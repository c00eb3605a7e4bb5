"""`POST /moves`: what `tessera defrag apply` asks of the scheduler, and the lines that it is told.

The answer is one line of JSON for each change of a move, until a last one (`isLast`). Empty lines say that the
connection lives. Moves of one step belong to a gang, and are made together.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from tessera.wire.errors import WireError
from tessera.wire.golang import INT32_MAX

PATH = "/moves"
MAX_BODY_BYTES = 4 << 20
MAX_MOVES = 4_096
MAX_CARDS = 64
MAX_INSTANCES = 16
"""of one card; the largest that are sold have 7"""
LONGEST_S = 86_400.0
"""that a request may ask for"""


class MoveStage(Enum):
    """How far a move is."""

    WAITING = "waiting"
    HELD = "held"
    EVICTED = "evicted"
    MOVED = "moved"
    STOPPED = "stopped"


class HeldInstance(msgspec.Struct, frozen=True, rename="camel"):
    """A MIG instance: a profile at a place."""

    profile: str
    start: int
    size: int


class HeldCard(msgspec.Struct, frozen=True, rename="camel"):
    """A part of one card."""

    uuid: str
    vendor: str
    slots: int
    memory: int
    """MiB"""
    cores: int = 0
    mig: tuple[HeldInstance, ...] = ()
    """of a card in MIG mode"""


class MovePlace(msgspec.Struct, frozen=True, rename="camel"):
    """Cards of one node."""

    node: str
    cards: tuple[str, ...]
    """uuids"""
    held: tuple[HeldCard, ...] = ()
    """what is taken of them; a target needs it"""


class MoveAsked(msgspec.Struct, frozen=True, rename="camel"):
    """One pod: it is evicted, and its successor goes to the target."""

    step: int
    namespace: str
    name: str
    uid: str
    source: MovePlace
    target: MovePlace


class MovesRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A plan to be carried out. Equal requests are one: the second caller follows the first one's moves."""

    moves: tuple[MoveAsked, ...]
    interval_s: float = 0.0
    """between two steps"""
    step_timeout_s: float = 600.0
    """for one step; its targets are held as long"""
    dry_run: bool = False


class MoveUpdate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of the answer."""

    uid: str = ""
    """of the pod that moves"""
    stage: MoveStage = MoveStage.WAITING
    reason: str = ""
    is_last: bool = False
    """nothing follows, and it is about no move"""


def decode_moves_request(body: bytes) -> MovesRequest:
    """Raises WireError."""
    try:
        found = msgspec.json.decode(body, type=MovesRequest)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a request for moves: {error}") from error
    if not 0 < len(found.moves) <= MAX_MOVES or len({move.uid for move in found.moves}) < len(found.moves):
        raise WireError(f"expected 1 to {MAX_MOVES} moves, each of another pod")
    if not (0.0 <= found.interval_s <= LONGEST_S and 0.0 < found.step_timeout_s <= LONGEST_S):
        raise WireError(f"a time beyond {LONGEST_S:g} s")
    for move in found.moves:
        _check_target(move)
    return found


def _check_target(move: MoveAsked) -> None:
    held = move.target.held
    if not 0 < len(held) <= MAX_CARDS or any(len(card.mig) > MAX_INSTANCES for card in held):
        raise WireError(f"{move.namespace}/{move.name}: the plan does not say what to hold: make it again")
    amounts = [amount for card in held for amount in (card.slots, card.memory, card.cores)]
    amounts += [amount for card in held for each in card.mig for amount in (each.start, each.size)]
    if not all(0 <= amount <= INT32_MAX for amount in amounts):
        raise WireError(f"{move.namespace}/{move.name}: an amount below 0, or above {INT32_MAX}")
