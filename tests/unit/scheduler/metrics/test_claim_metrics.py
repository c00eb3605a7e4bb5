"""What metrics say of claims."""

from __future__ import annotations

from tessera.core.ledger.ledger import Ledger
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.metrics.exposition import Exposition
from tessera.scheduler.metrics.granted_time import GrantedTime
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tessera.wire.objects import Workload
from tessera.wire.resource_api import ClaimStatus, Consumer
from tests.support.builders import pod
from tests.support.claim_scheduler import ClaimWorld, agent_node, claiming, templated
from tests.support.event_loops import in_fake_time
from tests.support.metric_samples import samples

MIB = 2**20


async def slices(exposition: Exposition) -> dict[tuple[str, str, str], float]:
    """Granted memory in MiB by pod, position and card."""
    return {
        (one.labels["pod"], one.labels["container_index"], one.labels["device_uuid"]): one.value / MIB
        for one in await samples(exposition)
        if one.name == "hami_vgpu_memory_allocated_bytes"
    }


class ScrapedWorld(ClaimWorld):
    """With the series of its cards."""

    exposition: Exposition | None = None

    def observer(self) -> SchedulerObserver:
        return ObserverGroup(super().observer(), _Toucher(self))


class _Toucher(SchedulerObserver):
    """As the scheduler's process does."""

    def __init__(self, world: ScrapedWorld) -> None:
        self._world = world

    def on_cards(self, node: str) -> None:
        if self._world.exposition is not None:
            self._world.exposition.touch(node)


@in_fake_time
async def test_what_a_claim_holds_is_shown_for_each_pod_that_uses_it_and_counted_once_when_written() -> None:
    world = ScrapedWorld(agent_node().gpus(1))
    exposition = world.exposition = Exposition(world.ledger, users_of=EngineView(world.engine).users_of)
    world.claim("c", memory=4096, cores=30)
    one, other = claiming(pod("one"), "c"), claiming(pod("other"), "c")
    expected = {}
    for user in (one, other):
        world.create(user)
        assert world.chosen(user) == "n1"
        assert await world.bound(user) == ""
        world.watch()
        expected[user.name, "claim", "n1-0"] = 4096
        assert await slices(exposition) == expected
    assert (world.claims.writer.allocated, world.claims.writer.released) == (1, 0)
    assert world.claims.book.holding == 1


class _Counter(SchedulerObserver):
    """The granted time of a world, as the scheduler's process counts it."""

    def __init__(self, world: CountedWorld) -> None:
        self._world = world

    def on_claim(self, uid: str, workload: Workload | None) -> None:
        self._world.counted.on_holder(uid, workload)

    def on_cards(self, node: str) -> None:
        self._world.counted.on_cards(node)


class CountedWorld(ClaimWorld):
    seconds = 0.0
    counted: GrantedTime

    def observer(self) -> SchedulerObserver:
        return ObserverGroup(super().observer(), _Counter(self))

    def start(self) -> None:
        self.counted = GrantedTime(Ledger({}), lambda: self.seconds)
        super().start()
        self.counted = GrantedTime(self.ledger, lambda: self.seconds)

    def granted(self) -> dict[Workload, float]:
        return {sample.key.workload: round(sample.seconds, 3) for sample in self.counted.time.samples()}


def claim_world() -> CountedWorld:
    """One card of 80 GiB."""
    world = CountedWorld(agent_node().gpus(1))
    world.restart()
    world.sync()
    return world


@in_fake_time
async def test_what_a_claim_holds_counts_for_the_workload_of_its_pod_until_it_is_released() -> None:
    world = claim_world()
    user = templated(pod().of("Job", "train"), claim="own")
    world.claim("own", owner=user, memory=20480)
    await world.run(user)
    world.watch()
    world.seconds = 100.0
    assert world.granted() == {Workload("default", "Job", "train"): 25.0}
    world.api.change_claim("default/own", ClaimStatus())
    world.watch()
    world.seconds = 200.0
    assert world.granted() == {Workload("default", "Job", "train"): 25.0}


@in_fake_time
async def test_a_claim_that_several_workloads_use_counts_once_under_its_own_name() -> None:
    world = claim_world()
    world.claim("c", memory=20480)
    for name in ("one", "two"):
        await world.run(claiming(pod(name).of("Job", name), "c"))
        world.watch()
        world.seconds += 100.0
    assert world.granted() == {
        Workload("default", "Job", "one"): 25.0,
        Workload("default", "ResourceClaim", "c"): 25.0,
    }


@in_fake_time
async def test_a_claim_that_is_seen_before_its_pod_counts_for_the_pod_s_workload_from_then_on() -> None:
    world = claim_world()
    user = templated(pod().of("Job", "train"), claim="own")
    world.claim("own", owner=user, memory=20480)
    consumer = Consumer(resource="pods", name="p", uid="uid-p")
    allocated = world.allocation("n1", "own", memory=20480, cores=0).allocation
    world.api.change_claim("default/own", ClaimStatus(allocated, (consumer,)))
    world.watch()
    world.seconds = 100.0
    world.create(user)
    world.seconds = 200.0
    assert world.granted() == {Workload("default"): 25.0, Workload("default", "Job", "train"): 25.0}
