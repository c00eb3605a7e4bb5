from __future__ import annotations

import random

import pytest

from tessera.node.handover.locks import TRIES, NodeLockRelease
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.unit.node.handover.world import NODE, Api

TIME = "2026-01-01T00:00:00Z"
OURS = f"{TIME},default,p"
THEIRS = f"{TIME},default,other"


def releasing(lock: str | None) -> tuple[Api, NodeLockRelease]:
    api = Api()
    api.lock(lock)
    return api, NodeLockRelease(api, NODE, rng=random.Random(0))


@pytest.mark.parametrize(
    ("lock", "left"),
    [
        (OURS, None),
        (TIME, None),
        (None, None),
        (THEIRS, THEIRS),
        (f"{TIME},other,p", f"{TIME},other,p"),
        ("x,default,q-p", "x,default,q-p"),
    ],
    ids=["ours", "nobody's", "none", "another pod's", "another namespace's", "a longer name"],
)
def test_only_the_lock_of_the_pod_or_of_nobody_is_released(lock: str | None, left: str | None) -> None:
    @in_fake_time
    async def check() -> None:
        api, locks = releasing(lock)
        assert await locks.release(("default", "p"))
        assert api.lock_text == left

    check()


@in_fake_time
async def test_a_node_that_others_change_is_tried_again() -> None:
    api, locks = releasing(OURS)
    step = Step(meanwhile=lambda: api.fake.annotate(NODE, other="change"))
    api.fake.script("annotate_node", step, step, lost_answer())
    assert await locks.release(("default", "p"))
    assert api.lock_text is None


@pytest.mark.parametrize("first", [OURS, TIME], ids=["owned", "nobody's"])
def test_a_lock_that_changes_hands_meanwhile_is_left(first: str) -> None:
    @in_fake_time
    async def check() -> None:
        api, locks = releasing(first)
        other = THEIRS if first == OURS else "2026-01-01T00:00:07Z"
        api.fake.script("annotate_node", Step(meanwhile=lambda: api.lock(other)))
        assert await locks.release(("default", "p"))
        assert api.lock_text == other

    check()


@in_fake_time
async def test_an_api_that_stays_away_is_given_up_without_an_error() -> None:
    api, locks = releasing(OURS)
    api.fake.always("get_node", refused(503))
    assert not await locks.release(("default", "p"))
    assert api.fake.calls == ["get_node"] * TRIES
    assert api.lock_text == OURS
