from __future__ import annotations

import asyncio

import pytest

from tessera.kube.errors import AccessError, ApiError, KubeError, Unreachable
from tessera.kube.eviction import RETRY_S, EvictionAnswer, EvictionResult, evict_pod

BUDGET = ApiError(status=429, message="Cannot evict pod", causes=("the budget needs 1 healthy pod",), retry_after=9.0)


class Server:
    def __init__(self, error: KubeError | None) -> None:
        self.error = error

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool = False) -> None:
        assert (namespace, name, uid, dry_run) == ("default", "p", "uid-p", True)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, EvictionAnswer(EvictionResult.EVICTED)),
        (ApiError(status=404), EvictionAnswer(EvictionResult.GONE)),
        (ApiError(status=409), EvictionAnswer(EvictionResult.GONE)),
        (BUDGET, EvictionAnswer(EvictionResult.REFUSED, "the budget needs 1 healthy pod", retry_after=9.0)),
        (ApiError(status=403, message="no right"), EvictionAnswer(EvictionResult.REFUSED, "no right", is_final=True)),
        (Unreachable("away", maybe_done=True), EvictionAnswer(EvictionResult.UNANSWERED, "away")),
        (AccessError("no token"), EvictionAnswer(EvictionResult.UNANSWERED, "no token", is_final=True)),
    ],
)
def test_the_answer_says_whether_the_pod_leaves_and_whether_to_ask_again(
    error: KubeError | None, answer: EvictionAnswer
) -> None:
    assert asyncio.run(evict_pod(Server(error), "default", "p", uid="uid-p", dry_run=True)) == answer


def test_the_apiserver_may_ask_for_more_time_but_not_for_less() -> None:
    times = [EvictionAnswer(EvictionResult.REFUSED, retry_after=each).retry_s for each in (None, 1.0, 60.0)]
    assert times == [RETRY_S, RETRY_S, 60.0]
