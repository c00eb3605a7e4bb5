"""The scheduler's failpoints are where they say: what is decided, written and noted at that moment."""

from __future__ import annotations

import os

import pytest

from tessera.scheduler.pod_cycle import CycleState
from tessera.services.failpoints import VARIABLE, Failpoint
from tests.support.builders import gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.stepwise_scheduler import World, serving_downward_api, using_downward_api

POD = using_downward_api(gpu_pod("p", mem=1000, cores=10))


@pytest.mark.parametrize(
    ("point", "state", "bound_to"),
    [
        (Failpoint.AFTER_RESERVE, CycleState.RESERVED, ""),
        (Failpoint.BEFORE_WRITE, CycleState.BINDING, ""),
        (Failpoint.AFTER_WRITE, CycleState.BINDING, "n1"),
        (Failpoint.BEFORE_SETTLE, CycleState.BOUND, None),
    ],
    ids=lambda value: value.value if isinstance(value, Failpoint) else "",
)
def test_a_failpoint_is_hit_at_its_moment(
    monkeypatch: pytest.MonkeyPatch, point: Failpoint, state: CycleState, bound_to: str | None
) -> None:
    """`bound_to` is the node that the API shows; None if the pod is gone."""
    seen: list[tuple[CycleState | None, str | None]] = []

    @in_fake_time
    async def live_and_die() -> None:
        world = World(serving_downward_api(node("n1").gpus(1)))

        def look(_pid: int, _number: int) -> None:
            pod = world.api.pods.get("default/p")
            seen.append((world.cycle_state(POD), pod.spec.node_name if pod is not None else None))

        monkeypatch.setattr(os, "kill", look)
        await world.run(POD)
        del world.api.pods["default/p"]
        world.pods.drop("default/p")

    monkeypatch.setenv(VARIABLE, f"{point.value}=kill")
    live_and_die()
    assert seen == [(state, bound_to)]
