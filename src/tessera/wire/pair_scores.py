"""The `hami.io/node-nvidia-score` annotation: how well each pair of cards of a node is linked.

Unreadable scores do not cost the node its cards: callers continue without scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from tessera.wire import gojson
from tessera.wire.errors import WireError
from tessera.wire.integers import INT32_MAX
from tessera.wire.quotes import quoted

PairScore = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class _Row(msgspec.Struct, frozen=True):
    uuid: str = ""
    score: dict[str, PairScore] = {}


def decode_pair_scores(text: str) -> dict[str, Mapping[str, int]]:
    """Scores by both uuids; each direction as the plugin wrote it."""
    scores: dict[str, Mapping[str, int]] = {}
    rows = gojson.decode_array(text, _Row, what="the pair score annotation", member="pair score")
    for position, row in enumerate(rows):
        if not row.uuid:
            raise WireError(f"pair score {position} has no uuid")
        if row.uuid in scores:
            raise WireError(f"device {quoted(row.uuid)} has two rows of pair scores")
        scores[row.uuid] = row.score
    return scores


def encode_pair_scores(scores: Mapping[str, Mapping[str, int]]) -> str:
    """Rows in the order given, the scores of a row sorted by uuid."""
    return gojson.encode([{"uuid": uuid, "score": dict(sorted(row.items()))} for uuid, row in scores.items()])
