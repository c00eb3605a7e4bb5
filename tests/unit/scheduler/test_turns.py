from __future__ import annotations

import asyncio

import pytest

from tessera.core.grants import Grant, Placement
from tessera.scheduler.allocation_queue import CARRIED_WAITS_S
from tessera.scheduler.pod_requests import Prepared
from tessera.scheduler.settings import NodeLockMode
from tessera.wire import keys
from tessera.wire.extender import BindingArgs
from tests.support.builders import NOW, NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import Step, never_sent, refused
from tests.support.stepwise_scheduler import TURN, World, by_answer, by_environment, carrying, uid

AUTO, ALWAYS, NEVER = NodeLockMode.AUTO, NodeLockMode.ALWAYS, NodeLockMode.NEVER
CAMBRICON = "cambricon.com/dsmlu.lock"
CONTENTION = "node n1 has been locked within 5m0s: node lock contention"
BUSY = "node n1 is still handing devices to another pod"


def foreign(built: NodeBuilder) -> NodeBuilder:
    return built


def granted(vendor: str = "NVIDIA", uuid: str = "n1-0", *, memory: int = 1000, count: int = 1) -> Placement:
    return Placement("n1", {vendor: (tuple(Grant(uuid, vendor, memory, 10) for _ in range(count)),)})


def args(pod: PodBuilder, on: str = "n1") -> BindingArgs:
    return BindingArgs(pod.name, pod.namespace, uid(pod), on)


async def take(
    world: World, name: str, placement: Placement | None = None, *, carries: bool = False, uncontrolled: bool = False
) -> str | None:
    built = gpu_pod(name)
    if f"default/{name}" not in world.api.pods:
        world.create(built)
    prepared = Prepared(built.request(), carries, uncontrolled)
    return await world.turns.take(args(built), prepared, placement or granted())


def lock_of(world: World, key: str = keys.NODE_LOCK) -> str | None:
    return world.api.nodes["n1"].annotations.get(key)


# -- who needs what


@pytest.mark.parametrize(
    ("served_by", "vendor", "carries", "mode", "turn", "lock"),
    [
        (by_environment, "NVIDIA", True, AUTO, False, False),
        (by_environment, "NVIDIA", False, AUTO, True, False),
        (by_answer, "NVIDIA", True, AUTO, True, False),
        (by_answer, "NVIDIA", False, AUTO, True, False),
        (foreign, "NVIDIA", True, AUTO, True, True),
        (foreign, "MLU", False, AUTO, True, True),
        (foreign, "Metax-GPU", False, AUTO, False, False),
        (by_environment, "NVIDIA", True, ALWAYS, True, True),
        (by_answer, "NVIDIA", False, ALWAYS, True, True),
        (foreign, "NVIDIA", False, ALWAYS, True, True),
        (foreign, "Metax-GPU", False, ALWAYS, True, True),
        (by_environment, "NVIDIA", True, NEVER, False, False),
        (by_answer, "NVIDIA", True, NEVER, True, False),
        (foreign, "NVIDIA", False, NEVER, True, False),
        (foreign, "Metax-GPU", False, NEVER, False, False),
    ],
)
def test_turn_and_lock_follow_from_the_agent_the_vendor_and_the_mode(
    served_by: type, vendor: str, carries: bool, mode: NodeLockMode, turn: bool, lock: bool
) -> None:
    world = World(served_by(node("n1").gpus(1)), mode=mode)
    placement = granted(vendor)
    assert world.turns.needs_turn(placement, carries=carries) is turn
    assert world.turns.needs_lock(placement) is lock


@pytest.mark.parametrize(
    ("said", "by_env"), [("env", True), ("env,cdi", True), (" cdi  env ", True), ("", False), ("environment", False)]
)
def test_an_agent_says_in_words_how_it_hands_over(said: str, by_env: bool) -> None:
    world = World(node("n1").gpus(1).annotate((keys.AGENT, said)))
    assert world.turns.needs_turn(granted(), carries=True) is not by_env


def test_a_node_that_loses_its_agent_is_served_by_a_foreign_plugin() -> None:
    world = World(by_environment(node("n1").gpus(1)))
    world.api.add_node(node("n1").gpus(1))
    world.watch()
    assert world.turns.needs_lock(granted())


# -- taking


@in_fake_time
async def test_pods_that_carry_their_slices_wait_for_nobody_of_their_kind() -> None:
    world = World(by_environment(node("n1").gpus(2)))
    for name in ("a", "b", "c"):
        assert await take(world, name, granted(memory=ord(name)), carries=True) is None
    assert (asyncio.get_running_loop().time(), world.handover.in_hand, world.api.writes) == (0, 3, [])


@in_fake_time
async def test_a_pod_that_did_not_pass_the_webhook_waits_for_those_that_carry_their_slices() -> None:
    world = World(by_environment(node("n1").gpus(2)))
    assert await take(world, "carries", granted(memory=1), carries=True) is None
    waiting = asyncio.create_task(take(world, "depends", granted(memory=2)))
    await asyncio.sleep(7)
    world.turns.over("uid-carries")
    assert await waiting is None
    assert asyncio.get_running_loop().time() == pytest.approx(7, abs=0.01)


@in_fake_time
async def test_pods_that_carry_their_slices_pass_one_that_is_never_handed_over() -> None:
    world = World(by_environment(node("n1").gpus(2)))
    assert await take(world, "stuck", granted(memory=2)) is None
    for name in ("a", "b", "c"):
        assert await take(world, name, granted(memory=1), carries=True) is None
    assert asyncio.get_running_loop().time() == pytest.approx(CARRIED_WAITS_S, abs=0.01), "only the first has waited"
    assert await take(world, "two", granted(memory=1, count=2), carries=True) is None


@in_fake_time
async def test_our_agent_needs_a_turn_only_between_pods_it_could_mix_up() -> None:
    world = World(by_answer(node("n1").gpus(2)))
    assert await take(world, "a", granted(uuid="n1-0")) is None
    assert await take(world, "same", granted(uuid="n1-0")) is None
    assert await take(world, "two", granted(uuid="n1-1", count=2)) is None
    assert await take(world, "other", granted(uuid="n1-1")) == BUSY
    assert asyncio.get_running_loop().time() == pytest.approx(TURN, abs=0.01)
    assert world.api.writes == []


@in_fake_time
async def test_the_answer_of_a_pod_without_the_enforcing_library_is_for_nobody_else() -> None:
    world = World(by_answer(node("n1").gpus(2)))
    assert await take(world, "a", granted(uuid="n1-0")) is None
    assert await take(world, "same", granted(uuid="n1-0"), uncontrolled=True) == BUSY


@pytest.mark.parametrize("mode", [AUTO, NEVER])
def test_a_foreign_plugin_gets_one_pod_at_a_time_with_and_without_the_lock(mode: NodeLockMode) -> None:
    @in_fake_time
    async def check() -> None:
        world = World(node("n1").gpus(2), mode=mode)
        assert await take(world, "a") is None
        assert await take(world, "b") == BUSY, "even an equal one"
        assert (lock_of(world) is not None) is (mode is AUTO)

    check()


@in_fake_time
async def test_turn_and_lock_together_take_no_longer_than_one_timeout() -> None:
    world = World(node("n1").gpus(1))
    assert await take(world, "a") is None
    waiting = asyncio.create_task(take(world, "b"))
    await asyncio.sleep(TURN - 5)
    world.turns.over("uid-a")  # the plugin said success but has not removed the lock yet
    assert await waiting == CONTENTION
    assert asyncio.get_running_loop().time() == pytest.approx(TURN, abs=0.01)


@in_fake_time
async def test_a_pod_of_several_vendors_takes_every_lock_once_in_a_fixed_order() -> None:
    world = World(node("n1").gpus(1))
    both = Placement("n1", {v: ((Grant(v, v, 1, 1),),) for v in ("NVIDIA", "MLU", "DCU")})
    assert await take(world, "a", both) is None
    assert [list(write.annotations) for write in world.api.writes] == [[CAMBRICON], [keys.NODE_LOCK]]


@in_fake_time
async def test_locks_taken_before_one_that_cannot_be_had_are_given_back() -> None:
    theirs = "2023-11-14T22:13:20Z,default,other"
    world = World(node("n1").gpus(1).annotate((keys.NODE_LOCK, theirs)))
    world.create(gpu_pod("other"))
    both = Placement("n1", {v: ((Grant(v, v, 1, 1),),) for v in ("NVIDIA", "MLU")})
    assert await take(world, "a", both) == CONTENTION
    assert lock_of(world, CAMBRICON) is not None
    await world.turns.give_back(args(gpu_pod("a")))
    assert (lock_of(world, CAMBRICON), lock_of(world)) == (None, theirs)
    assert world.handover.in_hand == 0


@in_fake_time
async def test_a_pod_that_tries_again_on_the_same_node_still_has_turn_and_locks() -> None:
    world = World(node("n1").gpus(1))
    both = Placement("n1", {v: ((Grant(v, v, 1, 1),),) for v in ("NVIDIA", "MLU")})
    assert await take(world, "a", both) is None
    assert await take(world, "a", both) is None
    assert (len(world.api.writes), world.handover.in_hand) == (2, 1)
    assert asyncio.get_running_loop().time() == 0, "Cambricon's lock names no owner, yet it is not waited for"


# -- giving back and ending


@in_fake_time
async def test_a_failed_bind_gives_lock_and_turn_to_the_next() -> None:
    world = World(node("n1").gpus(1))
    assert await take(world, "a") is None
    waiting = asyncio.create_task(take(world, "b"))
    await asyncio.sleep(1)
    await world.turns.give_back(args(gpu_pod("a")))
    assert await waiting is None
    assert asyncio.get_running_loop().time() == pytest.approx(1, abs=0.01), "the lock was gone before the turn came"
    assert (lock_of(world) or "").endswith(",default,b")


@pytest.mark.parametrize("fault", [refused(500), never_sent(), refused(404)])
def test_a_lock_that_cannot_be_removed_stops_neither_the_turn_nor_the_other_locks(fault: Exception) -> None:
    @in_fake_time
    async def check() -> None:
        world = World(node("n1").gpus(1))
        both = Placement("n1", {v: ((Grant(v, v, 1, 1),),) for v in ("NVIDIA", "MLU")})
        assert await take(world, "a", both) is None
        world.api.script("get_node", fault)  # type: ignore[arg-type]
        await world.turns.give_back(args(gpu_pod("a")))
        assert (lock_of(world, CAMBRICON) is None, lock_of(world)) == (False, None)
        assert world.handover.in_hand == 0

    check()


@in_fake_time
async def test_the_end_of_a_handover_leaves_the_lock_to_the_plugin() -> None:
    world = World(node("n1").gpus(1))
    assert await take(world, "a") is None
    world.turns.over("uid-a")
    assert world.handover.in_hand == 0
    await world.turns.give_back(args(gpu_pod("a")))
    assert lock_of(world) is not None


@in_fake_time
async def test_a_bind_cancelled_while_it_waits_for_the_lock_can_give_everything_back() -> None:
    theirs = "2023-11-14T22:13:20Z,default,other"
    world = World(node("n1").gpus(1).annotate((keys.NODE_LOCK, theirs)))
    world.create(gpu_pod("other"))
    waiting = asyncio.create_task(take(world, "a"))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await world.turns.give_back(args(gpu_pod("a")))
    assert (lock_of(world), world.handover.in_hand, world.handover.waiting) == (theirs, 0, 0)


@in_fake_time
async def test_an_apiserver_fault_while_locking_is_a_fault_of_the_bind() -> None:
    world = World(node("n1").gpus(1))
    world.api.script("get_node", Step(refused(404, "NotFound")))
    with pytest.raises(Exception, match="404"):
        await take(world, "a")


# -- after a restart


@pytest.mark.parametrize(
    ("served_by", "carries"), [(by_environment, True), (by_environment, False), (foreign, True), (by_answer, True)]
)
def test_a_pod_in_handover_before_a_restart_has_its_turn(served_by: type, carries: bool) -> None:
    world = World(served_by(node("n1").gpus(1)))
    built = gpu_pod("old", mem=500).annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING))
    world.create((carrying(built) if carries else built).on("n1", "n1-0,NVIDIA,500,0:;"))
    world.restart()
    assert world.handover.in_hand == 1


@in_fake_time
async def test_after_a_restart_the_next_pod_waits_for_the_one_that_an_earlier_process_bound() -> None:
    world = World(by_answer(node("n1").gpus(2)))
    old = gpu_pod("old", mem=500).annotate((keys.BIND_PHASE, keys.PHASE_ALLOCATING)).on("n1", "n1-0,NVIDIA,500,0:;")
    world.create(old)
    world.restart()
    waiting = asyncio.create_task(take(world, "a", granted(uuid="n1-1")))
    await asyncio.sleep(3)
    world.api.mark_pod("default/old", {keys.BIND_PHASE: keys.PHASE_SUCCESS})
    world.watch()
    assert await waiting is None
    assert asyncio.get_running_loop().time() == pytest.approx(3, abs=0.01)


def test_time_in_these_tests_starts_at_a_known_moment() -> None:
    assert World().now() == NOW
