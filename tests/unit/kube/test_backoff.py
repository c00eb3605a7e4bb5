from __future__ import annotations

import random

import pytest

from tessera.kube.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "ceiling"), [(-5, 0.5), (0, 0.5), (1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (10**9, 30.0)]
)
def test_the_longest_wait_doubles_up_to_the_cap(failures: int, ceiling: float) -> None:
    assert Backoff(initial=0.5, cap=30.0).ceiling(failures) == ceiling


def test_the_wait_is_anywhere_below_the_ceiling_and_never_nothing() -> None:
    random.seed(1)
    waits = [Backoff(initial=1.0, cap=8.0, floor=0.1).delay(4) for _ in range(1000)]
    assert 0.1 <= min(waits) < 0.3
    assert 7.5 < max(waits) <= 8.0
    assert 3.7 < sum(waits) / 1000 < 4.4


def test_a_floor_above_the_cap_is_the_wait() -> None:
    assert Backoff(initial=1.0, cap=1.0, floor=2.0).delay(1) == 2.0
