"""Who really asked: corrected when kubelet shows it, proven before a handover ends, and never guessed."""

from __future__ import annotations

import asyncio

import pytest

from tessera.node.handover.answers import Spot
from tessera.node.handover.proving import Proofs
from tessera.node.handover.searching import OVERDUE_S, WATCH_BEHIND_S
from tessera.node.handover.swaps import Swaps
from tessera.node.modes.base import AllocationRefused
from tests.support.event_loops import in_fake_time
from tests.unit.node.handover.world import World, bound, claims

A, B = "a/3000/50", "b/4000/60"
P, Q, R = ("uid-p", 0), ("uid-q", 0), ("uid-r", 0)


# -- pods of equal slices


@in_fake_time
async def test_a_handover_does_not_end_because_an_equal_pod_asked() -> None:
    world = World(bound("p", A), bound("q", A, at=1))
    async with world.running():
        assert (await world.gets("q", "c0", "GPU-a-0"))["pod"] == "p"
        await world.at_rest()
        assert (world.api.phase("p"), world.api.phase("q")) == ("allocating", "success")


@pytest.mark.parametrize("resources", [True, False], ids=["kubelet says", "kubelet silent"])
def test_a_pod_whose_slices_an_equal_one_took_gets_the_others(resources: bool) -> None:
    @in_fake_time
    async def check() -> None:
        world = World(bound("p", A, B, inits=1), bound("q", A, B, inits=1, at=1), resources=resources)
        async with world.running():
            await world.ask("i")
            await world.gets("q", "c1", "i")
            world.api.status("q", "Running")
            await world.at_rest()
            assert (world.api.phase("p"), world.api.phase("q")) == ("allocating", "success")
            got = [await world.ask("j"), await world.gets("p", "c1", "j")]
            assert [(each["pod"], each["container"]) for each in got] == [("q", "c0"), ("q", "c1")]
            world.api.status("p", "Running")
            await world.at_rest()
            assert (world.api.phase("p"), world.events) == ("success", [])

    check()


@in_fake_time
async def test_a_pod_keeps_waiting_where_the_equal_one_that_asked_is_gone_at_once() -> None:
    world = World(bound("p", A, B, inits=1), bound("q", A, B, inits=1, at=1))
    p = claims(bound("p", A, B, inits=1))
    async with world.running():
        await world.ask("i")
        await world.ask("i")
        world.api.delete("q")
        await world.at_rest()
        assert world.api.phase("p") == "allocating"
        world.prefer("j", "k")
        assert (await world.ask("j"))["what"] == repr(p[0].what)
        assert (await world.gets("p", "c1", "j"))["what"] == repr(p[1].what)


def test_slices_that_were_taken_are_made_up_for_along_a_chain() -> None:
    swaps = Swaps()
    swaps.exchange(P, Q)
    swaps.exchange(P, R)
    assert [swaps.of(each) for each in (P, Q, R)] == [R, P, Q]
    swaps.forget("uid-r")
    assert [swaps.of(each) for each in (P, Q)] == [Q, P]
    swaps.forget("uid-p")
    assert swaps.of(Q) == Q


@pytest.mark.parametrize(
    ("rivals", "over", "shown", "proven"),
    [
        ([Q], [], -1, False),
        ([Q], [Q], -1, True),
        ([Q, R], [Q], -1, False),
        ([], [], -1, False),
        ([Q], [], 1, True),
        ([Q], [], 0, True),
    ],
    ids=["a rival waits", "the rival is done", "one of two waits", "carries", "a later one is shown", "shown"],
)
def test_a_pod_has_its_devices_once_nobody_else_can_have_taken_them(
    rivals: list[Spot], over: list[Spot], shown: int, proven: bool
) -> None:
    proofs = Proofs()
    proofs.question(P, rivals)
    if shown >= 0:
        proofs.show("uid-p", shown)
    assert proofs.proven("uid-p", 0, over.__contains__) is proven
    assert proofs.proven("uid-q", 0, over.__contains__)


def test_a_rival_that_is_gone_may_have_been_the_one_that_asked() -> None:
    proofs = Proofs()
    proofs.question(P, [Q])
    proofs.forget("uid-q")
    assert not proofs.proven("uid-p", 0, lambda _where: True)
    proofs.forget("uid-p")
    assert proofs.proven("uid-p", 0, lambda _where: False)


# -- a watch that is behind


async def shown_later(world: World, seconds: float) -> None:
    await asyncio.sleep(seconds)
    world.api.behind = False
    world.api.catch_up()


@pytest.mark.parametrize("carried", [[], [0]], ids=["depends", "carries"])
def test_what_kubelet_seems_to_have_lost_is_not_given_to_a_pod_that_is_not_shown_yet(carried: list[int]) -> None:
    @in_fake_time
    async def check() -> None:
        world = World(bound("ended", A, carried=carried), bound("other", f"{A} {B}"))
        async with world.running():
            await world.ask("GPU-a-0")
            await world.at_rest()
            # kubelet gave a pod up, so that it may have lost other answers as well.
            world.api.status("other", "Failed")
            # The pod has ended and a dependent one is bound; neither is known here.
            world.api.behind = True
            world.api.delete("ended")
            world.api.put(bound("next", B))
            later = asyncio.create_task(shown_later(world, WATCH_BEHIND_S / 2))
            assert (await world.ask("GPU-a-0"))["pod"] == "next"
            await later

    check()


@in_fake_time
async def test_a_dependent_pod_that_is_overdue_does_not_lose_its_slice_to_one_that_is_not_shown_yet() -> None:
    world = World()
    world.api.put(bound("depends", A, B))
    depends = claims(bound("depends", A, B))
    async with world.running():
        await asyncio.sleep(OVERDUE_S)
        world.api.behind = True
        world.api.put(bound("carries", B, carried=[0]))
        later = asyncio.create_task(shown_later(world, WATCH_BEHIND_S / 2))
        await world.gets("carries", "c0", "GPU-b-0")
        await later
        for position, claim in enumerate(depends):
            got = await world.gets("depends", f"c{position}", f"GPU-a-{position}")
            assert got["what"] == repr(claim.what)
        await world.at_rest()
        assert (world.api.phase("depends"), world.api.phase("carries"), world.events) == ("success", "success", [])


@in_fake_time
async def test_a_dependent_pod_whose_equal_asked_and_is_gone_is_not_taken_for_one_that_carries() -> None:
    world = World()
    world.api.put(bound("p", A, B, inits=1), bound("q", A, B, inits=1, at=1))
    init, _ = claims(bound("p", A, B, inits=1))
    async with world.running():
        await world.ask("i")
        await world.ask("i")
        await asyncio.sleep(OVERDUE_S)
        world.api.behind = True
        world.api.delete("q")
        world.api.put(bound("carries", A, B, inits=1, carried=[0, 1], at=2))
        later = asyncio.create_task(shown_later(world, WATCH_BEHIND_S / 2))
        assert (await world.ask("j"))["what"] == repr(init.what)
        await later


@in_fake_time
async def test_a_dependent_pod_is_answered_at_once_while_nobody_can_have_passed_it() -> None:
    world = World()
    world.api.put(bound("depends", A, B))
    async with world.running():
        await asyncio.sleep(OVERDUE_S - 0.1)
        await world.gets("depends", "c0", "GPU-a-0")
        await asyncio.sleep(1)
        await world.gets("depends", "c1", "GPU-b-0")
        assert asyncio.get_running_loop().time() == pytest.approx(OVERDUE_S + 0.9, abs=0.01)


@in_fake_time
async def test_an_overdue_pod_beside_one_with_a_hidden_init_container_is_refused_with_both_named() -> None:
    world = World(bound("depends", A, B, inits=1), bound("carries", B, "", inits=1, carried=[0]), resources=False)
    async with world.running():
        await world.ask("i")
        with pytest.raises(AllocationRefused, match="could be meant for different slices on node n1: default/depends"):
            await world.ask("j")


@in_fake_time
async def test_a_pod_that_carries_its_slices_is_never_refused_for_what_others_were_taken_for() -> None:
    world = World(bound("known", A, carried=[0]))
    async with world.running():
        world.api.behind = True
        world.api.put(bound("two", A, f"{A} {B}", inits=1, carried=[0, 1]))
        assert await world.ask("GPU-a-0") == {"welcome": "yes"}
        later = asyncio.create_task(shown_later(world, 1.0))
        assert await world.gets("two", "c1", "GPU-a-1", "GPU-b-0") == {"welcome": "yes"}
        await later
        assert await world.gets("known", "c0", "GPU-a-2") == {"welcome": "yes"}
