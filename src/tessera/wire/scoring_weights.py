"""The `hami.io/device-scoring-weights` annotation: `slot=1,core=1,memory=3`, all three, in any order."""

from __future__ import annotations

from tessera.core.model.requests import Weights
from tessera.wire.errors import WireError
from tessera.wire.integers import parse_integer
from tessera.wire.keys import SCORING_WEIGHTS
from tessera.wire.quotes import quoted

_NAMES = ("slot", "core", "memory")


def decode_scoring_weights(text: str) -> Weights:
    try:
        weights = _weights(text)
    except WireError as error:
        raise WireError(f"invalid {SCORING_WEIGHTS} annotation {quoted(text)}: {error}") from error
    return Weights(**weights)


def _weights(text: str) -> dict[str, int]:
    parts = text.split(",")
    if len(parts) != len(_NAMES):
        raise WireError("expected slot, core, and memory weights")
    weights: dict[str, int] = {}
    for part in parts:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise WireError("expected key=value entries")
        if name in weights:
            raise WireError(f"duplicate {quoted(name)} weight")
        weights[name] = _weight(name, value)
    if not any(weights.values()):
        raise WireError("at least one weight must be positive")
    return weights


def _weight(name: str, text: str) -> int:
    weight = parse_integer(text)
    if weight is None:
        raise WireError(f"{quoted(name)} weight must be an integer")
    if weight < 0:
        raise WireError(f"{quoted(name)} weight must not be negative")
    if name not in _NAMES:
        raise WireError(f"unknown weight {quoted(name)}")
    return weight
