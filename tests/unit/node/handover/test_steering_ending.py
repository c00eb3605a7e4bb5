from __future__ import annotations

from typing import Any

import pytest

from tessera.node.handover.bound_pod import TO_ALLOCATE
from tessera.node.handover.ending import owed
from tessera.node.handover.matching import Meant
from tessera.node.handover.steering import VALID_S, Steering
from tessera.wire import keys
from tests.unit.node.handover.world import bound, claims, entry, view

A, B = "a/3000/50", "b/4000/60"
(CLAIM,) = claims(bound("p", A))
SUCCESS = {keys.BIND_PHASE: "success"}
FAILED = {keys.BIND_PHASE: "failed"}


@pytest.mark.parametrize(
    ("ids", "waits", "now", "found"),
    [
        (["a", "b"], True, 0.0, True),
        (["b", "a"], True, VALID_S, True),
        (["a"], True, 0.0, False),
        (["a", "c"], True, 0.0, False),
        (["a", "b"], False, 0.0, False),
        (["a", "b"], True, VALID_S + 1, False),
    ],
)
def test_a_proposal_is_for_exactly_its_ids_while_the_claim_waits(
    ids: list[str], waits: bool, now: float, found: bool
) -> None:
    steering = Steering()
    meant = Meant(CLAIM, certain=True)
    steering.propose(["a", "b"], meant, now=0.0)
    assert steering.take(ids, [CLAIM] if waits else [], now=now) == (meant if found else None)
    assert steering.take(["a", "b"], [CLAIM], now=0.0) is None


def test_another_question_ends_the_proposal() -> None:
    steering = Steering()
    steering.propose(["a"], Meant(CLAIM, certain=True), now=0.0)
    steering.asked(["a", "b"], [], 1)
    assert steering.take(["a"], [CLAIM], now=0.0) is None


@pytest.mark.parametrize(
    ("pod", "done", "failed", "written"),
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
def test_only_what_the_pod_does_not_say_yet_is_owed(
    pod: dict[str, Any], done: list[int], failed: bool, written: dict[str, str]
) -> None:
    assert owed(view(bound("p", A, B, **pod)), done=done, failed=failed) == written
