from __future__ import annotations

import asyncio

import pytest

from tessera.kube.backoff import Backoff
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.retry import MAX_RETRY_AFTER_S, retry_on_error

FIXED = Backoff(initial=1.0, cap=1.0, floor=1.0)


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
