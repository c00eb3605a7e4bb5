from __future__ import annotations

import asyncio
import random

import pytest

from tessera.kube.backoff import MAX_RETRY_AFTER_S, Backoff, retry_on_error
from tessera.kube.errors import ApiError, KubeError

FIXED = Backoff(initial=1.0, cap=1.0, floor=1.0)


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


def run(*errors: KubeError, tries: int = 10) -> tuple[list[float], list[int]]:
    left, pauses, failures = list(errors), list[float](), list[int]()

    async def write() -> str:
        if left:
            raise left.pop(0)
        return "written"

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def is_retriable(_error: KubeError, count: int) -> bool:
        failures.append(count)
        return count < tries

    assert asyncio.run(retry_on_error(write, backoff=FIXED, is_retriable=is_retriable, pause=pause)) == "written"
    return pauses, failures


def test_a_failure_is_tried_again_after_a_pause_until_it_is_written() -> None:
    assert run() == ([], [])
    assert run(KubeError(), KubeError()) == ([1.0, 1.0], [1, 2])


def test_the_last_error_is_raised() -> None:
    with pytest.raises(KubeError, match="second"):
        run(KubeError("first"), KubeError("second"), tries=2)


def test_a_server_that_asks_for_patience_gets_it_within_reason() -> None:
    asked = [ApiError(status=429, retry_after=seconds) for seconds in (0.5, 7.0, 3600.0)]
    assert run(*asked)[0] == [1.0, 7.0, MAX_RETRY_AFTER_S]
