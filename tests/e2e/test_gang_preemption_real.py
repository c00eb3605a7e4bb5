"""Gangs that preempt, with a real kube-apiserver and a stock kube-scheduler: all bound or none, and no pod too many."""

from __future__ import annotations

import pytest

from tessera.services.failpoints import VARIABLE, Failpoint
from tessera.wire.keys import NOMINATED
from tessera_lab.sandbox.api.kinds import Json
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.replica import until
from tests.e2e.test_gangs_real import bound, names
from tests.e2e.test_preemption_real import event_text, evictions, filled, make_classes, nodes, whole

POINTS = [
    (Failpoint.BEFORE_EVICT, 1),
    (Failpoint.AFTER_EVICT, 1),
    (Failpoint.AFTER_EVICT, 4),
    (Failpoint.AFTER_RESERVE, 1),
    (Failpoint.BEFORE_WRITE, 3),
]


def gang(size: int, *, gpu: int = 1) -> list[Json]:
    own = {"tessera.io/gang": "train", "tessera.io/gang-size": str(size)}
    members = [whole(f"train-{i}", gpu=gpu, priority="e2e-high") for i in range(size)]
    for made in members:
        made["metadata"]["annotations"] = own
    return members


def left(found: Cluster, low: list[str]) -> int:
    return len({pod["metadata"]["name"] for pod in found.pods} & set(low))


async def test_a_gang_preempts_as_one(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(3, 4)) as found:
        await make_classes(found.api)
        low = await filled(found, 10)
        members = gang(4, gpu=2)
        await found.create(*members)
        await found.running(*names(members))
        placed = [pod for pod in found.pods if pod["metadata"]["name"] in names(members)]
        shown = [pod for pod in placed if NOMINATED in pod["metadata"]["annotations"]]
        assert shown, "kube-scheduler is told where members go while victims leave"
        assert all(pod["metadata"]["annotations"][NOMINATED] == pod["spec"]["nodeName"] for pod in shown)
        assert left(found, low) == 4, "two cards were free"
        assert evictions(found) == 6 * 2, "each after a dry run"
        assert "train" in await event_text(found, "train-0", "Preempting")
        await found.at_rest()
        assert found.wrong_slices() == []
        assert found.missing_rights() == set()
        assert (await found.replica.scrape()).value("tessera_nominations") == 0


async def test_a_gang_for_which_not_all_victims_are_found_evicts_none(plane: ControlPlane) -> None:
    async with cluster(plane, nodes(2, 2)) as found:
        await make_classes(found.api)
        low = await filled(found, 3)
        await found.run(whole("equal", priority="e2e-high"))
        members = gang(4)
        await found.create(*members)
        assert "0 of 4 members fit" in await found.refused("train-0")
        await found.at_rest()
        assert (left(found, low), evictions(found), bound(found, members)) == (3, 0, 0)


@pytest.mark.parametrize(("point", "hit"), POINTS, ids=lambda value: str(getattr(value, "value", value)))
async def test_a_gang_that_preempts_is_bound_whole_wherever_the_scheduler_dies(
    plane: ControlPlane, point: Failpoint, hit: int
) -> None:
    async with cluster(plane, nodes(3, 2)) as found:
        await make_classes(found.api)
        low = await filled(found, 6)
        tessera = found.replica.tessera
        tessera.kill()
        tessera.start(**{VARIABLE: f"{point.value}=kill@{hit}"})
        await found.replica.ready()
        members = gang(4)
        await found.create(*members)

        async def is_dead() -> bool:
            return not tessera.is_running

        await until(is_dead, what=f"the end at {point.value}")
        assert point is Failpoint.BEFORE_WRITE or bound(found, members) == 0, "nothing was being written"
        tessera.start()
        await found.replica.ready()
        await found.running(*names(members))
        assert left(found, low) == 2, "none was evicted in vain"
        await found.at_rest()
        assert found.wrong_slices() == []
        assert (await found.replica.scrape()).value("tessera_nominations") == 0
