from __future__ import annotations

from typing import Any

import pytest

from tessera.node.handover.allocation_state import Allocation, AllocationState
from tessera.node.handover.assignments import TO_ALLOCATE
from tessera.node.handover.pod_cache import PodCache
from tessera.node.handover.status_writer import LOCK_TRIES, StatusWriter
from tessera.wire import keys
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, lost_answer, refused
from tests.support.handover_node import NODE, Api, bound, entry, view

TIME = "2026-01-01T00:00:00Z"
OURS = f"{TIME},default,p"
THEIRS = f"{TIME},default,other"


A, B = "a/3000/50", "b/4000/60"
SUCCESS = {keys.BIND_PHASE: "success"}
FAILED = {keys.BIND_PHASE: "failed"}


def writer_on(api: Api, state: AllocationState) -> StatusWriter:
    return StatusWriter(api, PodCache(NODE, api, time=lambda: 0.0, on_gone=state.forget), state)


@pytest.mark.parametrize(
    ("pod", "answered", "failed", "written"),
    [
        ({}, [], False, {}),
        ({}, [0], False, {TO_ALLOCATE: ";" + entry(B)}),
        ({}, [0, 1], False, {TO_ALLOCATE: ";;", **SUCCESS}),
        ({"annotations": {TO_ALLOCATE: ";;;;"}}, [], False, SUCCESS),
        ({"annotations": {"hami.io/dcu-devices-to-allocate": "d,DCU,1,1:;"}}, [0, 1], False, {TO_ALLOCATE: ";;"}),
        ({"status": "Running"}, [], False, {TO_ALLOCATE: ";;", **SUCCESS}),
        ({"status": "Succeeded"}, [], False, {TO_ALLOCATE: ";;", **SUCCESS}),
        ({"status": "Failed"}, [0, 1], False, FAILED),
        ({}, [0], True, FAILED),
        ({"phase": "success"}, [0], True, {}),
        ({"phase": "failed", "status": "Running"}, [], False, {}),
        ({"annotations": {keys.ASSIGNED_NODE: "elsewhere"}}, [0], True, {}),
        ({"annotations": {TO_ALLOCATE: "a,b:;"}}, [0], False, {}),
        ({"annotations": {TO_ALLOCATE: "a,b:;"}, "status": "Running"}, [], False, SUCCESS),
    ],
)
async def test_only_what_the_pod_does_not_say_yet_is_written(
    pod: dict[str, Any], answered: list[int], failed: bool, written: dict[str, str]
) -> None:
    state = AllocationState(downward_api=True)
    for position in answered:
        state.add(Allocation(frozenset({str(position)}), frozenset({("uid-p", position)})))
    state.failed.update(["uid-p"] * failed)
    assert writer_on(Api(), state).changes(view(bound("p", A, B, **pod))) == written


def releasing(lock: str | None) -> tuple[Api, StatusWriter]:
    api = Api()
    api.lock(lock)
    return api, writer_on(api, AllocationState(downward_api=True))


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
    ids=["ours", "no owner", "none", "another pod's", "another namespace's", "a longer name"],
)
@in_fake_time
async def test_only_the_lock_of_the_pod_or_one_without_an_owner_is_released(lock: str | None, left: str | None) -> None:
    api, writer = releasing(lock)
    assert await writer.release_lock(("default", "p"))
    assert api.lock_text == left


@in_fake_time
async def test_a_node_that_others_change_is_tried_again() -> None:
    api, writer = releasing(OURS)
    step = Step(meanwhile=lambda: api.fake.annotate(NODE, other="change"))
    api.fake.script("annotate_node", step, step, lost_answer())
    assert await writer.release_lock(("default", "p"))
    assert api.lock_text is None


@pytest.mark.parametrize("first", [OURS, TIME], ids=["owned", "no owner"])
@in_fake_time
async def test_a_lock_that_changes_hands_meanwhile_is_left(first: str) -> None:
    api, writer = releasing(first)
    other = THEIRS if first == OURS else "2026-01-01T00:00:07Z"
    api.fake.script("annotate_node", Step(meanwhile=lambda: api.lock(other)))
    assert await writer.release_lock(("default", "p"))
    assert api.lock_text == other


@in_fake_time
async def test_an_api_that_stays_away_is_given_up_without_an_error() -> None:
    api, writer = releasing(OURS)
    api.fake.always("get_node", refused(503))
    assert not await writer.release_lock(("default", "p"))
    assert api.fake.calls == ["get_node"] * LOCK_TRIES
    assert api.lock_text == OURS
