from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tessera.kube.errors import ApiError, KubeError
from tessera.scheduler.takeover import AT_ONCE, Takeover
from tessera.scheduler.tenure import NOT_LEADING, Tenure
from tessera.wire import keys
from tessera.wire.objects import SchedulingGate
from tests.support.builders import NOW, gpu_pod, node, pod
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster, Step, lost_answer, never_sent, refused
from tests.support.stepwise_scheduler import World


class Replica:
    """A replica that has just got the lease, beside some pods."""

    def __init__(self, *names: str) -> None:
        self.number: int | None = 1
        self.api = FakeCluster()
        for name in names:
            self.api.add_pod(gpu_pod(name))
        self.tenure = Tenure(lambda: self.number)
        self.takeover = Takeover(self.api, self.tenure, is_ours=lambda _: True, now=lambda: NOW)

    def fences(self) -> list[str]:
        return [pod.annotations.get(keys.FENCE, "") for pod in self.api.pods.values()]

    def versions(self) -> list[str]:
        return [pod.metadata.resource_version for pod in self.api.pods.values()]

    def lose_lease(self) -> None:
        self.number = None


@in_fake_time
async def test_every_pod_that_is_not_bound_gets_another_version() -> None:
    here = Replica("p", "q")
    here.api.add_pod(gpu_pod("bound").on("n1", "n1-0,NVIDIA,1000,10:;"))
    before = here.versions()
    fence = await here.takeover.run(1)
    assert fence
    assert here.fences() == [fence, fence, ""]
    assert [old != new for old, new in zip(before, here.versions(), strict=True)] == [True, True, False]
    assert (here.takeover.left, here.takeover.problem) == (0, "")


@in_fake_time
async def test_each_take_over_changes_the_versions_again() -> None:
    here = Replica("p")
    first = await here.takeover.run(1)
    before = here.versions()
    second = await here.takeover.run(1)
    assert first != second
    assert here.versions() != before


@in_fake_time
async def test_a_binding_of_the_earlier_decider_cannot_land_after_the_take_over() -> None:
    here = Replica("p")
    old = here.api.pods["default/p"].metadata
    await here.takeover.run(1)
    with pytest.raises(KubeError, match="409"):
        await here.api.bind(
            *("default", "p"), uid=old.uid, resource_version=old.resource_version, node="n1", annotations={}, labels={}
        )


@in_fake_time
async def test_a_pod_that_is_gone_meanwhile_needs_no_fence() -> None:
    here = Replica("p", "q")
    here.api.script("annotate_pod", Step(meanwhile=lambda: here.api.delete_pod("default/p")))
    assert await here.takeover.run(1) is not None
    assert list(here.api.pods) == ["default/q"]


@in_fake_time
async def test_a_pod_whose_annotations_are_full_is_fenced_by_a_label() -> None:
    """A tenant can fill them, and a Binding would land all the same."""
    here = Replica("p", "q")
    here.api.full.add("default/p")
    before = here.versions()
    fence = await here.takeover.run(1)
    assert all(old != new for old, new in zip(before, here.versions(), strict=True))
    assert (here.fences(), here.api.pods["default/p"].metadata.labels) == (["", fence], {keys.FENCE: fence})


@in_fake_time
async def test_a_pod_as_large_as_pods_may_be_needs_no_fence() -> None:
    here = Replica("p")
    here.api.always("annotate_pod", ApiError(status=500, message="etcdserver: request is too large"))
    assert await here.takeover.run(1) is not None


@in_fake_time
async def test_many_pods_are_touched_a_few_at_a_time() -> None:
    here = Replica(*(f"p{number}" for number in range(3 * AT_ONCE)))
    here.api.always("annotate_pod", Step(delay=1.0))
    assert await here.takeover.run(1) is not None
    assert asyncio.get_running_loop().time() == pytest.approx(3.0)
    assert "" not in here.fences()


@pytest.mark.parametrize("fault", [refused(403, "Forbidden"), refused(409), refused(500), lost_answer(), never_sent()])
@in_fake_time
async def test_a_pod_that_cannot_be_touched_keeps_the_replica_from_deciding_and_is_tried_again(
    fault: KubeError,
) -> None:
    here = Replica("p", "q")
    here.api.always("annotate_pod", fault)
    running = asyncio.create_task(here.takeover.run(1))
    await asyncio.sleep(120)
    assert here.takeover.left == 2
    assert "2 pods cannot be touched, such as default/p" in here.takeover.problem
    assert str(fault) in here.tenure.missing()
    assert len(here.api.writes) < 60, "it pauses longer and longer"
    here.api.always("annotate_pod", None)
    assert await running is not None
    assert "" not in here.fences()
    assert (here.takeover.left, here.takeover.problem) == (0, "")


@in_fake_time
async def test_one_pod_that_cannot_be_touched_does_not_keep_the_others_from_it() -> None:
    here = Replica("p", "q")
    here.api.script("annotate_pod", refused(403))
    assert await here.takeover.run(1) is not None
    assert here.api.calls == ["unbound_pods", *["annotate_pod"] * 3]


@in_fake_time
async def test_pods_that_cannot_be_listed_are_listed_again() -> None:
    here = Replica("p")
    here.api.script("unbound_pods", never_sent(), refused(500))
    assert await here.takeover.run(1) is not None
    assert here.api.calls == [*["unbound_pods"] * 3, "annotate_pod"]


@pytest.mark.parametrize("verb", ["unbound_pods", "annotate_pod"])
@in_fake_time
async def test_a_lease_that_moves_on_ends_the_take_over(verb: str) -> None:
    here = Replica("p")
    here.api.script(verb, Step(meanwhile=here.lose_lease))
    assert await here.takeover.run(1) is None
    assert here.tenure.number is None


@in_fake_time
async def test_a_lease_that_moves_on_ends_even_a_take_over_that_is_held_up() -> None:
    here = Replica("p")
    here.api.always("annotate_pod", Step(refused(403), meanwhile=here.lose_lease))
    assert await here.takeover.run(1) is None
    assert here.takeover.problem == ""


# -- the engine


def change_spec(world: World, name: str, **fields: object) -> None:
    found = world.api.pods[f"default/{name}"]
    world.api.pods[f"default/{name}"] = replace(found, spec=replace(found.spec, **fields))


@in_fake_time
async def test_pods_that_filter_would_decide_about_are_fenced_and_others_are_left_alone() -> None:
    world = World(node("n1").gpus(1))
    plain = pod("plain").container()
    world.create(gpu_pod("asks"), gpu_pod("bad", mem="much"), plain, plain.called("named"), gpu_pod("gated"))
    change_spec(world, "named", scheduler_name="hami-scheduler")
    change_spec(world, "gated", scheduling_gates=[SchedulingGate("wait")])
    await world.engine.take_over(0, lambda: None)
    fenced = {key.partition("/")[2] for key, one in world.api.pods.items() if keys.FENCE in one.annotations}
    assert fenced == {"asks", "bad", "named"}


@in_fake_time
async def test_nothing_is_decided_before_the_take_over_is_done_and_the_pods_are_read_again() -> None:
    world = World(node("n1").gpus(1))
    for handler in (world.pods, world.nodes, world.quotas):
        handler.has_synced = True
    asking = gpu_pod("p")
    world.create(asking)
    world.stop_leading()
    assert world.engine.missing() == NOT_LEADING
    world.leads = 5
    assert world.engine.missing() == NOT_LEADING, "the lease alone is not enough"
    world.api.always("annotate_pod", Step(delay=5.0))

    def catch_up() -> None:
        world.pods.has_synced = False

    running = asyncio.create_task(world.engine.take_over(5, catch_up))
    await asyncio.sleep(1)
    assert world.engine.missing() == "this replica is taking over"
    await running
    assert world.engine.missing() == "the first list of pods is not complete"
    world.pods.synced()
    assert world.engine.missing() == ""


@in_fake_time
async def test_nominations_of_the_earlier_decider_are_removed_and_no_others() -> None:
    here = Replica("ours", "again", "late", "plain", "kube-scheduler")
    for name in ("ours", "again", "late"):
        await here.api.set_nominated_node("default", name, uid=f"uid-{name}", node="n1")
    other = here.api.pods["default/kube-scheduler"]
    here.api.pods["default/kube-scheduler"] = replace(other, status=replace(other.status, nominated_node_name="n1"))
    assert await here.takeover.run(1) is not None
    here.api.script("set_nominated_node", refused(500), Step())
    await here.takeover.clear_nominated_nodes(1, is_nominated=lambda uid: uid == "uid-again")
    nominated = {key.partition("/")[2]: one.status.nominated_node_name for key, one in here.api.pods.items()}
    assert nominated == {"ours": "n1", "again": "n1", "late": "", "plain": "", "kube-scheduler": "n1"}
    here.lose_lease()
    await here.takeover.clear_nominated_nodes(1, is_nominated=lambda uid: False)
    assert here.api.pods["default/ours"].status.nominated_node_name == "n1", "another replica may have nominated it"


@in_fake_time
async def test_a_take_over_that_was_cut_short_remembers_no_nomination() -> None:
    here = Replica("p")
    await here.api.set_nominated_node("default", "p", uid="uid-p", node="n1")
    here.api.script("annotate_pod", Step(meanwhile=here.lose_lease))
    assert await here.takeover.run(1) is None
    here.number = 1
    await here.takeover.clear_nominated_nodes(1, is_nominated=lambda uid: False)
    assert here.api.pods["default/p"].status.nominated_node_name == "n1"


@in_fake_time
async def test_a_take_over_removes_nominations() -> None:
    world = World(node("n1").gpus(1))
    world.create(gpu_pod("p"))
    await world.api.set_nominated_node("default", "p", uid="uid-p", node="n1")
    spawned: list[Any] = []
    world.engine.spawn = spawned.append
    await world.engine.take_over(0, lambda: None)
    [work] = spawned
    await work
    assert world.api.pods["default/p"].status.nominated_node_name == ""
