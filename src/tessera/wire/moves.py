"""What is held on a node because pods are moved: one annotation of the node for each place.

    asked ──▶ held ──▶ (removed: the place is taken, or the move was given up)
      └─────▶ refused: why

A place is held for the successor of a pod that is moved there, or for a pod that waits: the moves are made for it.
`tessera defrag` writes `asked` and removes the annotation; the scheduler that decides answers with `held` or `refused`.
A hold ends at `until` in any case. The annotation is the only record, so a hold outlives a restart.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from tessera.wire.errors import WireError
from tessera.wire.integers import INT32_MAX

LONGEST = 16_384
"""characters of an annotation that are read"""
MAX_CARDS = 64
MAX_INSTANCES = 16
"""of one card; the largest that are sold have 7"""
MAX_LEAVING = 256


class HoldState(Enum):
    ASKED = "asked"
    HELD = "held"
    REFUSED = "refused"


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


class MoveHold(msgspec.Struct, frozen=True, rename="camel"):
    """One hold."""

    namespace: str
    kind: str
    """of the controller that creates the successor; a Deployment instead of its ReplicaSet. Empty if `pod` is given"""
    name: str
    """of that controller"""
    until: float
    """unix seconds"""
    cards: tuple[HeldCard, ...]
    state: HoldState = HoldState.ASKED
    reason: str = ""
    """why it is refused"""
    pod: str = ""
    """uid of a pod that waits; no other pod may take the place"""
    leaving: tuple[str, ...] = ()
    """uids of pods that are moved away first: they have the place, or a part of what its gang needs"""


def decode_move_hold(text: str) -> MoveHold:
    """Raises WireError."""
    if len(text) > LONGEST:
        raise WireError(f"a hold of {len(text)} characters; at most {LONGEST}")
    try:
        found = msgspec.json.decode(text, type=MoveHold)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not a hold: {error}") from error
    if not (found.kind or found.pod) or not 0 < len(found.cards) <= MAX_CARDS:
        raise WireError("a hold needs a controller or a pod, and at least one card")
    if len(found.leaving) > MAX_LEAVING or any(len(card.mig) > MAX_INSTANCES for card in found.cards):
        raise WireError("a hold of too much")
    amounts = (amount for card in found.cards for amount in (card.slots, card.memory, card.cores))
    places = (amount for card in found.cards for each in card.mig for amount in (each.start, each.size))
    if not all(0 <= amount <= INT32_MAX for amount in (*amounts, *places)):
        raise WireError(f"a hold of an amount below 0, or above {INT32_MAX}")
    return found


def encode_move_hold(hold: MoveHold) -> str:
    return msgspec.json.encode(hold).decode()
