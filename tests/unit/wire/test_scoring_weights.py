from __future__ import annotations

import pytest

from tessera.core.model.requests import Weights
from tessera.vendors.pod_reader import decode_scoring_weights
from tessera.wire.errors import WireError


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("slot=1,core=1,memory=3", Weights(1, 1, 3)),
        ("memory=3,slot=1,core=2", Weights(1, 2, 3)),
        (" memory = 3, slot = 1, core = 0 ", Weights(1, 0, 3)),
        ("slot=0,core=0,memory=9223372036854775807", Weights(0, 0, 2**63 - 1)),
        ("slot=+1,core=0,memory=0", Weights(1, 0, 0)),
    ],
)
def test_weights_are_read_in_any_order(text: str, weights: Weights) -> None:
    assert decode_scoring_weights(text) == weights


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected slot, core, and memory weights"),
        ("slot=1,memory=3", "expected slot, core, and memory weights"),
        ("slot=1,core=1,memory=3,", "expected slot, core, and memory weights"),
        ("slot=1,core,memory=3", "expected key=value entries"),
        (",,", "expected key=value entries"),
        ("slot=1,slot=2,memory=3", 'duplicate "slot" weight'),
        ("slot=1,core=high,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=1=2,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=9223372036854775808,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=1.5,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=1_0,memory=3", '"core" weight must be an integer'),
        ("slot=1,core=-1,memory=3", '"core" weight must not be negative'),
        ("slot=1,bandwidth=2,memory=3", 'unknown weight "bandwidth"'),
        ("Slot=1,core=2,memory=3", 'unknown weight "Slot"'),
        ("slot=0,core=0,memory=0", "at least one weight must be positive"),
    ],
)
def test_bad_weights_are_refused_in_hamis_words(text: str, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_scoring_weights(text)
    assert str(caught.value) == f'invalid hami.io/device-scoring-weights annotation "{text}": {reason}'


def test_strange_text_is_escaped_and_cut() -> None:
    with pytest.raises(WireError) as caught:
        decode_scoring_weights('"\n\ud800' + "x" * 100_000)
    assert '"\\"\\n?xxx' in str(caught.value)
    assert len(str(caught.value)) < 400
