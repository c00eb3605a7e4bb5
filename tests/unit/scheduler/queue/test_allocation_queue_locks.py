"""Which pods need a turn and which node locks, how the queue takes and gives back locks, and what a restart knows."""

from __future__ import annotations

import asyncio

import pytest

from tessera.core.model.grants import Grant, Placement
from tessera.scheduler.queue.allocation_queue import Ticket, TicketState
from tessera.scheduler.settings import NodeLockMode
from tessera.wire import keys
from tests.support.builders import NodeBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, never_sent, refused
from tests.support.stepwise_scheduler import TURN, World, answering, serving_downward_api, using_downward_api

AUTO, ALWAYS, NEVER = NodeLockMode.AUTO, NodeLockMode.ALWAYS, NodeLockMode.NEVER
CAMBRICON = "cambricon.com/dsmlu.lock"
CONTENTION = "node n1 has been locked within 5m0s: node lock contention"
BUSY = "node n1 is still handing devices to another pod"


# -- who needs what


def foreign(built: NodeBuilder) -> NodeBuilder:
    return built


def granted(vendor: str = "NVIDIA", *, count: int = 1) -> Placement:
    return Placement("n1", {vendor: (tuple(Grant(f"n1-{i}", vendor, 1000, 10) for i in range(count)),)})


def of_vendors(*names: str) -> Placement:
    return Placement("n1", {name: ((Grant(name, name, 1, 1),),) for name in names})


@pytest.mark.parametrize(
    ("served_by", "vendor", "downward_api", "mode", "depends", "lock"),
    [
        (serving_downward_api, "NVIDIA", True, AUTO, False, False),
        (serving_downward_api, "NVIDIA", False, AUTO, True, False),
        (answering, "NVIDIA", True, AUTO, True, False),
        (answering, "NVIDIA", False, AUTO, True, False),
        (foreign, "NVIDIA", True, AUTO, True, True),
        (foreign, "MLU", False, AUTO, True, True),
        (foreign, "Metax-GPU", False, AUTO, False, False),
        (serving_downward_api, "NVIDIA", True, ALWAYS, True, True),
        (answering, "NVIDIA", False, ALWAYS, True, True),
        (foreign, "NVIDIA", False, ALWAYS, True, True),
        (foreign, "Metax-GPU", False, ALWAYS, True, True),
        (serving_downward_api, "NVIDIA", True, NEVER, False, False),
        (answering, "NVIDIA", True, NEVER, True, False),
        (foreign, "NVIDIA", False, NEVER, True, False),
        (foreign, "Metax-GPU", False, NEVER, False, False),
    ],
)
def test_turn_and_lock_follow_from_the_agent_the_vendor_and_the_mode(
    served_by: type, vendor: str, downward_api: bool, mode: NodeLockMode, depends: bool, lock: bool
) -> None:
    world = World(served_by(node("n1").gpus(1)), mode=mode)
    placement = granted(vendor)
    assert world.queue.depends_on_allocate(placement, uses_downward_api=downward_api) is depends
    assert world.queue.needs_lock(placement) is lock


@pytest.mark.parametrize(
    ("said", "serves"), [("env", True), ("env,cdi", True), (" cdi  env ", True), ("", False), ("environment", False)]
)
def test_an_agent_says_in_words_how_it_hands_over(said: str, serves: bool) -> None:
    world = World(node("n1").gpus(1).annotate((keys.AGENT, said)))
    assert world.queue.depends_on_allocate(granted(), uses_downward_api=True) is not serves


def test_a_node_that_loses_its_agent_is_served_by_a_foreign_plugin() -> None:
    world = World(serving_downward_api(node("n1").gpus(1)))
    world.api.add_node(node("n1").gpus(1))
    world.watch()
    assert world.queue.needs_lock(granted())


def test_nothing_is_kept_of_a_node_that_is_gone() -> None:
    world = World(serving_downward_api(node("n1").gpus(1).annotate((keys.NODE_LOCK, "2026-01-01T00:00:00Z,default,p"))))
    assert world.queue._locks.owner("n1") == ("default", "p")
    world.api.delete_node("n1")
    world.watch()
    assert (world.queue._agents, world.queue._locks._owners, world.queue._locks._changes) == ({}, {}, {})


def test_a_ticket_has_the_device_counts_of_all_containers_with_devices() -> None:
    world = World(serving_downward_api(node("n1").gpus(1)))
    placement = Placement(
        "n1",
        {
            "NVIDIA": ((Grant("a", "NVIDIA", 1, 1),), (), ()),
            "DCU": ((), (Grant("b", "DCU", 1, 1), Grant("c", "DCU", 1, 1)), ()),
        },
    )
    ticket = world.queue.issue("u", ("default", "p"), placement, uses_downward_api=False)
    assert ticket is not None
    assert (sorted(ticket.device_counts), ticket.depends_on_allocate, ticket.state) == ([1, 2], True, TicketState.OUT)


def test_a_plugin_that_never_says_when_it_is_done_is_not_waited_for() -> None:
    world = World(node("n1").gpus(1))
    assert world.queue.issue("u", ("default", "p"), granted("Metax-GPU"), uses_downward_api=False) is None


# -- node locks


async def enter(world: World, name: str, placement: Placement | None = None) -> tuple[Ticket, str]:
    if f"default/{name}" not in world.api.pods:
        world.create(gpu_pod(name))
    ticket = world.queue.issue(f"uid-{name}", ("default", name), placement or granted(), uses_downward_api=False)
    assert ticket is not None
    return ticket, await world.queue.enter(ticket)


def lock_of(world: World, key: str = keys.NODE_LOCK) -> str | None:
    return world.api.nodes["n1"].annotations.get(key)


@pytest.mark.parametrize("mode", [AUTO, NEVER])
@in_fake_time
async def test_a_foreign_plugin_gets_one_pod_at_a_time_with_and_without_the_lock(mode: NodeLockMode) -> None:
    world = World(node("n1").gpus(2), mode=mode)
    _, problem = await enter(world, "a")
    assert problem == ""
    _, problem = await enter(world, "b")
    assert problem == BUSY
    assert (lock_of(world) is not None) is (mode is AUTO)


@in_fake_time
async def test_turn_and_lock_together_take_no_longer_than_one_timeout() -> None:
    world = World(node("n1").gpus(1))
    first, _ = await enter(world, "a")
    waiting = asyncio.create_task(enter(world, "b"))
    await asyncio.sleep(TURN - 5)
    world.queue.leave(first)  # The plugin said success but has not removed the lock yet.
    _, problem = await waiting
    assert problem == CONTENTION
    assert asyncio.get_running_loop().time() == pytest.approx(TURN, abs=0.01)


@in_fake_time
async def test_a_pod_of_several_vendors_takes_every_lock_once_in_a_fixed_order() -> None:
    world = World(node("n1").gpus(1))
    _, problem = await enter(world, "a", of_vendors("NVIDIA", "MLU", "DCU"))
    assert problem == ""
    assert [list(write.annotations) for write in world.api.writes] == [[CAMBRICON], [keys.NODE_LOCK]]


@in_fake_time
async def test_locks_taken_before_one_that_cannot_be_had_are_given_back() -> None:
    theirs = "2023-11-14T22:13:20Z,default,other"
    world = World(node("n1").gpus(1).annotate((keys.NODE_LOCK, theirs)))
    world.create(gpu_pod("other"))
    ticket, problem = await enter(world, "a", of_vendors("NVIDIA", "MLU"))
    assert problem == CONTENTION
    assert lock_of(world, CAMBRICON) is not None
    await world.queue.give_back(ticket)
    assert (lock_of(world, CAMBRICON), lock_of(world)) == (None, theirs)
    assert world.queue.active == 0


@in_fake_time
async def test_a_pod_that_tries_again_on_the_same_node_still_has_turn_and_locks() -> None:
    world = World(node("n1").gpus(1))
    ticket, _ = await enter(world, "a", of_vendors("NVIDIA", "MLU"))
    assert await world.queue.enter(ticket) == ""
    assert (len(world.api.writes), world.queue.active) == (2, 1)
    assert asyncio.get_running_loop().time() == 0, "Cambricon's lock names no owner, yet it is not waited for"


@in_fake_time
async def test_a_failed_bind_gives_lock_and_turn_to_the_next() -> None:
    world = World(node("n1").gpus(1))
    first, _ = await enter(world, "a")
    waiting = asyncio.create_task(enter(world, "b"))
    await asyncio.sleep(1)
    await world.queue.give_back(first)
    _, problem = await waiting
    assert problem == ""
    assert asyncio.get_running_loop().time() == pytest.approx(1, abs=0.01), "the lock was gone before the turn came"
    assert (lock_of(world) or "").endswith(",default,b")


@pytest.mark.parametrize("fault", [refused(500), never_sent(), refused(404)])
@in_fake_time
async def test_a_lock_that_cannot_be_removed_stops_neither_the_turn_nor_the_other_locks(fault: Exception) -> None:
    world = World(node("n1").gpus(1))
    ticket, _ = await enter(world, "a", of_vendors("NVIDIA", "MLU"))
    world.api.script("get_node", fault)  # type: ignore[arg-type]
    await world.queue.give_back(ticket)
    assert sorted([lock_of(world, CAMBRICON) is None, lock_of(world) is None]) == [False, True]
    assert world.queue.active == 0


@in_fake_time
async def test_the_end_of_a_handover_leaves_the_lock_to_the_plugin() -> None:
    world = World(node("n1").gpus(1))
    ticket, _ = await enter(world, "a")
    world.queue.leave(ticket)
    assert world.queue.active == 0
    await world.queue.give_back(ticket)
    assert lock_of(world) is not None


@in_fake_time
async def test_a_bind_cancelled_while_it_waits_for_the_lock_can_give_everything_back() -> None:
    theirs = "2023-11-14T22:13:20Z,default,other"
    world = World(node("n1").gpus(1).annotate((keys.NODE_LOCK, theirs)))
    world.create(gpu_pod("other"), gpu_pod("a"))
    ticket = world.queue.issue("uid-a", ("default", "a"), granted(), uses_downward_api=False)
    assert ticket is not None
    waiting = asyncio.create_task(world.queue.enter(ticket))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await world.queue.give_back(ticket)
    assert (lock_of(world), world.queue.active, world.queue.waiting) == (theirs, 0, 0)


@in_fake_time
async def test_an_apiserver_fault_while_locking_is_a_fault_of_the_bind() -> None:
    world = World(node("n1").gpus(1))
    world.api.script("get_node", Step(refused(404, "NotFound")))
    with pytest.raises(Exception, match="404"):
        await enter(world, "a")


@in_fake_time
async def test_cambricons_lock_expires_after_its_own_two_minutes_and_the_turn_with_it() -> None:
    world = World(node("n1").gpus(1))
    _, problem = await enter(world, "a", of_vendors("MLU"))
    assert problem == ""
    await asyncio.sleep(119)
    world.queue.end_overdue()
    assert world.queue.active == 1
    await asyncio.sleep(2)
    world.queue.end_overdue()
    _, problem = await enter(world, "b", of_vendors("MLU"))
    assert problem == ""
    assert asyncio.get_running_loop().time() == pytest.approx(121, abs=0.01), "nothing was waited for"


@in_fake_time
async def test_a_turn_lasts_as_long_as_the_longest_lock_of_its_pod() -> None:
    world = World(node("n1").gpus(1))
    await enter(world, "a", of_vendors("NVIDIA", "MLU"))
    await asyncio.sleep(299)
    world.queue.end_overdue()
    assert world.queue.active == 1
    await asyncio.sleep(1)
    world.queue.end_overdue()
    assert world.queue.active == 0


# -- after a restart


@pytest.mark.parametrize(
    ("served_by", "downward_api"),
    [(serving_downward_api, True), (serving_downward_api, False), (foreign, True), (answering, True)],
)
def test_a_pod_in_handover_before_a_restart_has_its_turn(served_by: type, downward_api: bool) -> None:
    world = World(served_by(node("n1").gpus(1)))
    built = gpu_pod("old", mem=500).annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING))
    world.create((using_downward_api(built) if downward_api else built).on("n1", "n1-0,NVIDIA,500,0:;"))
    world.restart()
    assert world.queue.active == 1


@in_fake_time
async def test_after_a_restart_the_next_pod_waits_for_the_one_that_an_earlier_process_bound() -> None:
    world = World(answering(node("n1").gpus(2)))
    old = gpu_pod("old", mem=500).annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING)).on("n1", "n1-0,NVIDIA,500,0:;")
    world.create(old)
    world.restart()
    waiting = asyncio.create_task(enter(world, "a"))
    await asyncio.sleep(3)
    world.api.mark_pod("default/old", {keys.BIND_PHASE: keys.PHASE_SUCCESS})
    world.watch()
    _, problem = await waiting
    assert problem == ""
    assert asyncio.get_running_loop().time() == pytest.approx(3, abs=0.01)
