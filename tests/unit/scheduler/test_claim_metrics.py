"""What metrics say of claims."""

from __future__ import annotations

from tessera.scheduler.metrics.exposition import Exposition
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tests.support.builders import pod
from tests.support.claim_scheduler import ClaimWorld, agent_node, claiming
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
    exposition = world.exposition = Exposition(world.ledger, claims=world.claims.book)
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
    assert world.claims.writer.take_totals() == {"allocated": 1, "released": 0}
    assert world.claims.writer.take_totals() == {"allocated": 0, "released": 0}
    assert world.claims.book.holding == 1
