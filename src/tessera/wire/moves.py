"""What is held on a node for the successor of a pod that is moved there: one annotation of the node for each.

    asked ──▶ held ──▶ (removed: the successor has it, or the move was given up)
      └─────▶ refused: why

`tessera defrag apply` writes `asked` and removes the annotation; the scheduler that decides answers with `held` or
`refused`. A hold ends at `until` in any case. The annotation is the only record, so a hold outlives a restart.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from tessera.wire.errors import WireError

LONGEST = 16_384
"""characters of an annotation that are read"""
MOST_CARDS = 64


class HoldState(Enum):
    ASKED = "asked"
    HELD = "held"
    REFUSED = "refused"


class HeldCard(msgspec.Struct, frozen=True, rename="camel"):
    """A part of one card."""

    uuid: str
    vendor: str
    slots: int
    memory: int
    """MiB"""
    cores: int = 0


class MoveHold(msgspec.Struct, frozen=True, rename="camel"):
    """One hold."""

    namespace: str
    kind: str
    """of the controller that creates the successor; a Deployment instead of its ReplicaSet"""
    name: str
    """of that controller"""
    until: float
    """unix seconds"""
    cards: tuple[HeldCard, ...]
    state: HoldState = HoldState.ASKED
    reason: str = ""
    """why it is refused"""


def decode_move_hold(text: str) -> MoveHold:
    """Raises WireError."""
    if len(text) > LONGEST:
        raise WireError(f"a hold of {len(text)} characters; at most {LONGEST}")
    try:
        found = msgspec.json.decode(text, type=MoveHold)
    except msgspec.MsgspecError as error:
        raise WireError(f"not a hold: {error}") from error
    if not found.kind or not 0 < len(found.cards) <= MOST_CARDS:
        raise WireError("a hold needs a controller and at least one card")
    if any(card.slots < 0 or card.memory < 0 or card.cores < 0 for card in found.cards):
        raise WireError("a hold of a negative amount")
    return found


def encode_move_hold(hold: MoveHold) -> str:
    return msgspec.json.encode(hold).decode()
