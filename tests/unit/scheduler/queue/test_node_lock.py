from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from tessera.kube.errors import ApiError, Unreachable
from tessera.scheduler.queue.node_lock import CONFLICTS, LOOK_AGAIN, HeldLock, LockRefusal, NodeLocks
from tessera.wire.keys import NODE_LOCK
from tests.support.builders import NOW, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.fake_cluster import FakeCluster, Step, lost_answer, never_sent, refused

EXPIRE = 300.0
TIMEOUT = 20.0
CAMBRICON = "cambricon.com/dsmlu.lock"
OWN = ("default", "p")


def at(seconds: float) -> str:
    """A time on the wire, from the start of the test."""
    return (datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


OURS = f"{at(0)},default,p"
THEIRS = f"{at(0)},default,other"


class World:
    def __init__(self, lock: str | None = None, *, key: str = NODE_LOCK, expire_after: float = EXPIRE) -> None:
        self.api = FakeCluster()
        self.api.add_node(node("n1") if lock is None else node("n1").annotate((key, lock)))
        self.api.add_pod(gpu_pod("other"))
        loop = asyncio.get_running_loop()
        self.skew = 0.0
        """seconds by which the wall clock is set"""
        self.locks = NodeLocks(self.api, now=lambda: NOW + loop.time() + self.skew, time=loop.time)
        self.expire_after = expire_after

    async def acquire(self, key: str = NODE_LOCK) -> HeldLock | LockRefusal:
        return await self.locks.acquire("n1", key, OWN, expire_after=self.expire_after, timeout=TIMEOUT)

    def waiting(self, key: str = NODE_LOCK) -> asyncio.Task[HeldLock | LockRefusal]:
        return asyncio.create_task(self.acquire(key))

    def change(self, lock: str | None, key: str = NODE_LOCK, *, seen: bool = True) -> None:
        self.api.annotate("n1", **{key: lock})
        if seen:
            self.locks.observe_node(self.api.nodes["n1"])

    @property
    def lock(self) -> str | None:
        return self.api.nodes["n1"].annotations.get(NODE_LOCK)


# -- taking


@in_fake_time
async def test_a_free_lock_is_taken_with_time_and_owner() -> None:
    world = World()
    assert await world.acquire() == HeldLock("n1", NODE_LOCK, OURS)
    assert world.lock == OURS


@in_fake_time
async def test_our_own_lock_is_kept_as_it_is_until_it_has_expired() -> None:
    own = f"{at(-EXPIRE)},default,p"
    world = World(own)
    assert await world.acquire() == HeldLock("n1", NODE_LOCK, own)
    assert world.api.writes == []


@pytest.mark.parametrize(
    "old",
    [
        f"{at(-EXPIRE - 1)},default,other",
        f"{at(-EXPIRE - 1)},default,p",
        f"{at(-EXPIRE - 1)}",
        f"{at(-10)},default,deleted-long-ago",
    ],
    ids=["expired", "own but expired", "expired without owner", "owner gone"],
)
@in_fake_time
async def test_a_forgotten_lock_is_taken_over(old: str) -> None:
    world = World(old)
    assert await world.acquire() == HeldLock("n1", NODE_LOCK, OURS)
    assert world.lock == OURS
    assert asyncio.get_running_loop().time() == 0


@pytest.mark.parametrize(
    ("node_name", "phase"),
    [("n1", "Running"), ("n1", "Succeeded"), ("n1", "Failed"), ("", "Failed"), ("n2", "Pending")],
)
@in_fake_time
async def test_a_lock_whose_owner_waits_for_no_allocate_on_this_node_is_taken_over(node_name: str, phase: str) -> None:
    world = World(THEIRS)
    other = world.api.pods["default/other"]
    spec, status = replace(other.spec, node_name=node_name), replace(other.status, phase=phase)
    world.api.pods["default/other"] = replace(other, spec=spec, status=status)
    assert await world.acquire() == HeldLock("n1", NODE_LOCK, OURS)
    assert asyncio.get_running_loop().time() == 0


@in_fake_time
async def test_another_pods_lock_is_waited_for_until_its_node_changes() -> None:
    world = World(THEIRS)
    waiting = world.waiting()
    await asyncio.sleep(3)
    world.change(None)
    assert await waiting == HeldLock("n1", NODE_LOCK, f"{at(3)},default,p")


@in_fake_time
async def test_a_lock_of_a_node_that_is_gone_is_not_waited_for() -> None:
    world = World(THEIRS)
    waiting = world.waiting()
    await asyncio.sleep(1)
    world.api.delete_node("n1")
    world.locks.forget_node("n1")
    with pytest.raises(ApiError, match="404"):
        await waiting
    assert asyncio.get_running_loop().time() == 1


@in_fake_time
async def test_a_change_that_does_not_free_the_lock_goes_on_waiting() -> None:
    world = World(THEIRS)
    waiting = world.waiting()
    await asyncio.sleep(1)
    world.change(f"{at(1)},default,other")
    await asyncio.sleep(1)
    assert not waiting.done()
    world.change(None)
    assert isinstance(await waiting, HeldLock)


@in_fake_time
async def test_a_change_that_no_informer_shows_is_found_by_looking_again() -> None:
    world = World(THEIRS)
    waiting = world.waiting()
    await asyncio.sleep(1)
    world.change(None, seen=False)
    assert isinstance(await waiting, HeldLock)
    assert asyncio.get_running_loop().time() == pytest.approx(LOOK_AGAIN, abs=0.01)


@in_fake_time
async def test_a_lock_that_expires_while_waiting_is_taken_soon_after() -> None:
    world = World(f"{at(-EXPIRE + 2)},default,other")
    assert isinstance(await world.acquire(), HeldLock)
    assert 2 < asyncio.get_running_loop().time() <= 3.01


@in_fake_time
async def test_a_lock_is_held_up_to_the_age_at_which_it_expires() -> None:
    world = World(f"{at(-EXPIRE)},default,other")
    assert isinstance(await world.acquire(), HeldLock)
    assert asyncio.get_running_loop().time() == pytest.approx(1.0, abs=0.01)


@in_fake_time
async def test_a_change_between_reading_and_waiting_is_not_missed() -> None:
    world = World(THEIRS)
    world.api.script("get_pod", Step(meanwhile=lambda: world.change(None)))
    assert isinstance(await world.acquire(), HeldLock)
    assert asyncio.get_running_loop().time() == 0


@pytest.mark.parametrize(
    ("expire_after", "text"), [(300.0, "5m0s"), (20.5, "20s"), (3600.0, "1h0m0s"), (3725.0, "1h2m5s")]
)
@in_fake_time
async def test_a_lock_that_stays_is_an_error_in_upstreams_words(expire_after: float, text: str) -> None:
    world = World(f"{at(100000)},default,other", expire_after=expire_after)
    answer = await world.acquire()
    assert answer == LockRefusal(f"node n1 has been locked within {text}: node lock contention")
    assert asyncio.get_running_loop().time() == pytest.approx(TIMEOUT, abs=0.01)


@in_fake_time
async def test_two_who_want_one_lock_get_it_one_after_the_other() -> None:
    world = World()
    world.api.add_pod(gpu_pod("p"))
    first = await world.acquire()
    assert isinstance(first, HeldLock)
    other = ("default", "other")
    second = asyncio.create_task(world.locks.acquire("n1", NODE_LOCK, other, expire_after=EXPIRE, timeout=TIMEOUT))
    await asyncio.sleep(1)
    assert not second.done()
    await world.locks.release(first)
    world.locks.observe_node(world.api.nodes["n1"])
    assert await second == HeldLock("n1", NODE_LOCK, f"{at(1)},default,other")


# -- races and faults


@in_fake_time
async def test_a_lost_race_looks_again() -> None:
    world = World()
    touched = Step(meanwhile=lambda: world.api.annotate("n1", heartbeat="1"))
    world.api.script("annotate_node", touched, touched)
    assert await world.acquire() == HeldLock("n1", NODE_LOCK, OURS)


@in_fake_time
async def test_a_race_lost_to_another_pod_is_not_won_by_force() -> None:
    world = World()
    world.api.script("annotate_node", Step(meanwhile=lambda: world.api.annotate("n1", **{NODE_LOCK: THEIRS})))
    assert isinstance(await world.acquire(), LockRefusal)
    assert world.lock == THEIRS


@in_fake_time
async def test_races_lost_again_and_again_are_contention() -> None:
    world = World()
    world.api.always("annotate_node", refused(409, "Conflict"))
    assert await world.acquire() == LockRefusal("node n1 is locked: node lock contention")
    assert len(world.api.writes) == CONFLICTS


@in_fake_time
async def test_writes_that_get_no_answer_are_not_repeated_for_ever() -> None:
    world = World()
    world.api.always("annotate_node", never_sent())
    assert await world.acquire() == LockRefusal("node n1 is locked: node lock contention")
    assert len(world.api.writes) == CONFLICTS


@in_fake_time
async def test_the_owner_of_a_lock_is_the_one_that_the_informer_last_showed() -> None:
    world = World()
    assert world.locks.owner("n1") is None
    for text, owner in ((f"{at(0)},default,p", OWN), (f"{at(0)},default,q", ("default", "q")), (None, None)):
        world.api.annotate("n1", **{NODE_LOCK: text})
        world.locks.observe_node(world.api.nodes["n1"])
        assert world.locks.owner("n1") == owner
    world.api.annotate("n1", **{NODE_LOCK: f"{at(0)},default,p"})
    world.locks.observe_node(world.api.nodes["n1"])
    world.locks.forget_node("n1")
    assert world.locks.owner("n1") is None


@in_fake_time
async def test_a_refused_write_is_an_error_with_its_cause() -> None:
    world = World()
    world.api.script("annotate_node", refused(403, "Forbidden"))
    assert await world.acquire() == LockRefusal("failed to set node lock of n1: 403 Forbidden: scripted")


@in_fake_time
async def test_a_lock_whose_answer_was_lost_is_found_to_be_ours() -> None:
    world = World()
    world.api.script("annotate_node", Step(lost_answer(), done=True))
    assert await world.acquire() == HeldLock("n1", NODE_LOCK, OURS)
    assert len(world.api.writes) == 1


@in_fake_time
async def test_a_lock_that_was_never_sent_is_written_again() -> None:
    world = World()
    world.api.script("annotate_node", never_sent())
    assert await world.acquire() == HeldLock("n1", NODE_LOCK, OURS)


@pytest.mark.parametrize("verb", ["get_node", "get_pod"])
@in_fake_time
async def test_an_apiserver_that_cannot_be_asked_is_a_fault(verb: str) -> None:
    world = World(THEIRS)
    world.api.script(verb, refused(500))
    with pytest.raises(ApiError):
        await world.acquire()
    assert world.lock == THEIRS


@pytest.mark.parametrize("text", ["yesterday", "2026-01-01T00:00:00Z,only-namespace", ",,", ""])
@in_fake_time
async def test_a_malformed_lock_is_refused_and_left_alone(text: str) -> None:
    world = World(text)
    answer = await world.acquire()
    assert isinstance(answer, LockRefusal)
    assert answer.text.startswith("malformed lock annotation")
    assert world.lock == text


# -- Cambricon


@in_fake_time
async def test_cambricons_lock_is_a_bare_time_under_its_own_key() -> None:
    world = World()
    assert await world.acquire(CAMBRICON) == HeldLock("n1", CAMBRICON, at(0))
    assert world.api.nodes["n1"].annotations == {CAMBRICON: at(0)}


@in_fake_time
async def test_cambricons_lock_is_waited_for_although_it_names_no_owner() -> None:
    world = World(at(0), key=CAMBRICON)
    waiting = world.waiting(CAMBRICON)
    await asyncio.sleep(2)
    world.change(None, CAMBRICON)
    assert await waiting == HeldLock("n1", CAMBRICON, at(2))


@in_fake_time
async def test_a_refusal_of_another_lock_than_the_common_one_names_its_key() -> None:
    world = World(at(0), key=CAMBRICON, expire_after=120.0)
    text = "node n1 has been locked within 2 minutes (cambricon.com/dsmlu.lock): node lock contention"
    assert await world.acquire(CAMBRICON) == LockRefusal(text)


# -- releasing


@in_fake_time
async def test_a_lock_is_removed_by_who_took_it() -> None:
    world = World()
    held = await world.acquire()
    assert isinstance(held, HeldLock)
    await world.locks.release(held)
    assert world.lock is None


@pytest.mark.parametrize("now_there", [None, THEIRS, f"{at(7)},default,p", at(0)])
@in_fake_time
async def test_only_the_very_value_that_was_taken_is_removed(now_there: str | None) -> None:
    world = World()
    held = await world.acquire()
    assert isinstance(held, HeldLock)
    world.change(now_there)
    await world.locks.release(held)
    assert world.lock == now_there


@in_fake_time
async def test_a_foreign_cambricon_lock_is_never_dropped() -> None:
    world = World()
    held = await world.acquire(CAMBRICON)
    assert isinstance(held, HeldLock)
    world.change(at(5), CAMBRICON)
    await world.locks.release(held)
    assert world.api.nodes["n1"].annotations == {CAMBRICON: at(5)}


@in_fake_time
async def test_a_release_that_loses_a_race_looks_again_and_gives_up_in_the_end() -> None:
    world = World()
    held = await world.acquire()
    assert isinstance(held, HeldLock)
    world.api.script("annotate_node", refused(409, "Conflict"))
    await world.locks.release(held)
    assert world.lock is None
    held = await world.acquire()
    assert isinstance(held, HeldLock)
    world.api.always("annotate_node", refused(409, "Conflict"))
    await world.locks.release(held)
    assert world.lock == held.text, "left to its expiry"


@pytest.mark.parametrize("fault", [refused(500), never_sent()])
@in_fake_time
async def test_a_release_that_fails_otherwise_is_a_fault(fault: ApiError | Unreachable) -> None:
    world = World()
    held = await world.acquire()
    assert isinstance(held, HeldLock)
    world.api.script("annotate_node", fault)
    with pytest.raises(type(fault)):
        await world.locks.release(held)


@in_fake_time
async def test_a_change_of_a_node_that_no_bind_waits_for_is_ignored() -> None:
    world = World()
    world.locks.observe_node(world.api.nodes["n1"])
    assert isinstance(await world.acquire(), HeldLock)


# -- clocks that are set


@in_fake_time
async def test_a_lock_from_before_the_clock_was_set_back_expires_in_its_time() -> None:
    world = World(THEIRS)
    world.skew = -7200.0
    for _ in range(int(EXPIRE / TIMEOUT)):
        assert isinstance(await world.acquire(), LockRefusal)
    assert isinstance(await world.acquire(), HeldLock)
    assert asyncio.get_running_loop().time() <= EXPIRE + TIMEOUT


@in_fake_time
async def test_a_lock_that_was_met_does_not_expire_because_the_clock_is_set_ahead() -> None:
    world = World(THEIRS)
    assert isinstance(await world.acquire(), LockRefusal)
    world.skew = 7200.0
    assert isinstance(await world.acquire(), LockRefusal)
    assert world.lock == THEIRS


@in_fake_time
async def test_our_own_lock_does_not_expire_because_the_clock_is_set_ahead() -> None:
    world = World()
    taken = await world.acquire()
    world.skew = 7200.0
    assert await world.acquire() == taken
