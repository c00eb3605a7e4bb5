"""Which member takes which hold: its own, one that is meant for no member, or another one's in exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates
from tessera.scheduler.features.gangs.gang import Gang, Member, MemberState
from tessera.wire.pod_groups import PodGroup
from tests.support.builders import PodBuilder, gpu_pod, node
from tests.support.event_loops import in_fake_time
from tests.support.gangs import bind_all, gang, held, machine, woken
from tests.support.stepwise_scheduler import World, gangs_of, serving_downward_api, uid, using_downward_api

NODES = [f"n{i}" for i in range(6)]


class Planned:
    """A gang whose members a, b, ... have a hold each; `holds` says on which node, by member."""

    def __init__(self, candidates: dict[str, list[str] | None], **holds: str) -> None:
        self.world = World(*(node(name).gpus(1) for name in NODES))
        self.gang = Gang("default", PodGroup("g", len(candidates), len(candidates)), 0.0)
        for name, names in candidates.items():
            known = None if names is None else self.candidates(names)
            self.gang.members.add(Member(self.request(name), MemberState.PENDING, candidates=known))
        self.keeper = gangs_of(self.world.engine).holds
        for name, at in holds.items():
            held = self.world.ledger.name_hold(self.gang.name, self.request(name))
            self.keeper.put(self.gang, held, Placement(at, {}), name)

    @staticmethod
    def request(name: str) -> PodRequest:
        return gpu_pod(name).called(name, uid=name).request()

    def candidates(self, names: Sequence[str]) -> Candidates:
        return self.world.selector.candidates(names)

    def take(self, name: str, *allowed: str) -> str | None:
        """The node of the hold that the member gets."""
        found = self.keeper.take(self.gang, self.request(name), self.candidates(allowed))
        return None if found is None else found.placement.node

    @property
    def holds(self) -> dict[str, str]:
        """The nodes of the free holds, by the member that each is meant for."""
        return {str(hold.meant_for): hold.node for hold in self.keeper.of(self.gang)}


def test_a_member_takes_its_own_hold() -> None:
    planned = Planned({"a": None, "b": None}, a="n0", b="n1")
    assert planned.take("b", *NODES) == "n1"
    assert planned.holds == {"a": "n0"}
    assert planned.take("a", *NODES) == "n0"
    assert planned.holds == {}


def test_two_members_exchange_their_holds() -> None:
    planned = Planned({"a": ["n0", "n1"], "b": ["n0", "n1"]}, a="n0", b="n1")
    assert planned.take("a", "n1", "n2") == "n1"
    assert planned.holds == {"b": "n0"}


def test_a_member_that_could_not_use_the_other_hold_keeps_its_own() -> None:
    planned = Planned({"a": None, "b": ["n1", "n2"]}, a="n0", b="n1")
    assert planned.take("a", "n1") is None
    assert planned.holds == {"a": "n0", "b": "n1"}


def test_members_that_were_not_asked_for_may_go_anywhere() -> None:
    planned = Planned({"a": None, "b": None}, a="n0", b="n1")
    assert planned.take("a", "n1") == "n1"
    assert planned.holds == {"b": "n0"}


def test_three_members_exchange_their_holds_where_two_cannot() -> None:
    planned = Planned({"a": None, "b": ["n1", "n2"], "c": ["n0", "n2"]}, a="n0", b="n1", c="n2")
    assert planned.take("a", "n1") == "n1"
    assert planned.holds == {"b": "n2", "c": "n0"}


def test_what_the_last_call_allowed_counts_and_not_the_one_before() -> None:
    planned = Planned({"a": None, "b": ["n0", "n1"]}, a="n0", b="n1")
    planned.gang.members["b"].narrowed = planned.candidates(["n1"])
    assert planned.take("a", "n1") is None


def test_a_hold_that_is_meant_for_no_member_which_waits_comes_before_an_exchange() -> None:
    planned = Planned({"a": None, "b": None}, a="n0", b="n1", gone="n2")
    assert planned.take("a", "n1", "n2") == "n2"
    assert planned.holds == {"b": "n1", "a": "n0"}


def test_a_hold_of_a_member_that_is_bound_is_free_for_others() -> None:
    planned = Planned({"a": None, "b": None}, a="n0", b="n1")
    planned.gang.members.set_state(planned.gang.members["b"], MemberState.BOUND)
    assert planned.take("a", "n1") == "n1"


def test_members_of_another_shape_exchange_nothing() -> None:
    planned = Planned({"a": None, "b": None}, a="n0", b="n1")
    other = gpu_pod("c", mem=1_000).called("c", uid="c").request()
    planned.gang.members.add(Member(other, MemberState.PENDING))
    assert planned.keeper.take(planned.gang, other, planned.candidates(NODES)) is None


def test_a_member_without_a_hold_gets_one_that_is_meant_for_none_before_that_of_another_one() -> None:
    planned = Planned({"a": None, "b": None, "c": None}, a="n0", gone="n2", b="n1")
    for name, left in (("b", {"a", "gone"}), ("c", {"a"}), ("c", set[str]())):
        found = planned.keeper.exchange(planned.gang, planned.request(name), planned.candidates(NODES))
        assert found is not None
        assert set(planned.holds) == left


# -- kube-scheduler's own reasons


@in_fake_time
async def test_a_planned_node_that_kube_scheduler_does_not_allow_is_replaced() -> None:
    world = World(machine("n1"), machine("n2"), machine("n3"))
    pods = gang(4)
    world.create(*pods)
    first = world.chosen(pods[0])
    others = [name for name in ("n1", "n2", "n3") if name != first]
    chosen = [first, *(world.chosen(pod, others) for pod in pods[1:])]
    assert first not in chosen[1:]
    binds = [world.bound(pod, at) for pod, at in zip(pods, chosen, strict=True)]
    assert await asyncio.gather(*binds) == [""] * 4
    assert world.agrees()


@in_fake_time
async def test_a_plan_that_kube_scheduler_makes_impossible_is_given_up_with_the_reason() -> None:
    world = World(machine("n1"), machine("n2"))
    pods = gang(4)
    world.create(*pods)
    binds = [asyncio.ensure_future(world.bound(pod, world.chosen(pod))) for pod in pods[:2]]
    await asyncio.sleep(0)
    answer = world.filtered(pods[2], [world.placement(pods[0]).node])
    assert answer["NodeNames"] is None
    [text] = set(answer["FailedNodes"].values())
    assert "kube-scheduler does not allow the planned node for pod g-2" in text
    assert [text.partition(":")[0] for text in await asyncio.gather(*binds)] == ["gang default/g"] * 2
    assert (held(world), world.ledger.pods(), world.api.calls) == (0, [], [])


@in_fake_time
async def test_members_that_ask_for_the_same_leave_a_restricted_one_its_node() -> None:
    world = World(machine("n1"), machine("n2"))
    pods, blocker = gang(4), using_downward_api(gpu_pod("blocker"))
    world.create(blocker.on("n1", "n1-0,NVIDIA,81920,0:;"), *pods)
    allowed = [None, None, None, ["n1"]]
    for pod, names in zip(pods, allowed, strict=True):
        assert world.filtered(pod, names)["NodeNames"] is None
    world.api.delete_pod("default/blocker")
    world.watch()
    assert len(await woken(world)) == 4
    chosen = [world.chosen(pod, names) for pod, names in zip(pods, allowed, strict=True)]
    assert (chosen[3], sorted(chosen)) == ("n1", ["n1", "n1", "n2", "n2"])


@in_fake_time
async def test_members_exchange_their_places_before_one_goes_to_another_node() -> None:
    names = ["n1", "n2", "n3", "n4"]
    world = World(*(machine(name, cards=1) for name in names))
    pods = gang(3)
    world.create(*pods)
    found = gangs_of(world.engine).registry.get("default", "g")
    assert found is not None
    world.chosen(pods[0])
    planned = {str(hold.meant_for): hold.node for hold in gangs_of(world.engine).holds.of(found)}
    own, others = planned[uid(pods[1])], planned[uid(pods[2])]
    assert world.chosen(pods[1], [name for name in names if name != own]) == others
    world.api.add_node(machine("n0", cards=1))
    world.watch()
    assert world.chosen(pods[2]) == own, "it has that place now, and looks for no other one"


@in_fake_time
async def test_the_next_plan_respects_the_node_that_a_member_could_not_get() -> None:
    world = World(machine("n1", cards=1), machine("n2", cards=1))
    pods = gang(2)
    world.create(*pods)
    first = world.chosen(pods[0])
    bind = asyncio.ensure_future(world.bound(pods[0], first))
    await asyncio.sleep(0)
    assert world.filtered(pods[1], [first])["NodeNames"] is None
    assert "does not allow the planned node for pod g-1" in await bind
    await asyncio.sleep(10)
    other = world.chosen(pods[0])
    assert other != first
    binds = [world.bound(pods[0], other), world.bound(pods[1], world.chosen(pods[1], [first]))]
    assert await asyncio.gather(*binds) == ["", ""]


@in_fake_time
async def test_what_an_earlier_plan_was_not_allowed_makes_no_later_one_impossible() -> None:
    world = World(machine("n1", cards=1), machine("n2", cards=1))
    pods = gang(2)
    world.create(*pods)
    first = world.chosen(pods[0])
    assert world.filtered(pods[1], [first])["NodeNames"] is None
    world.create(using_downward_api(gpu_pod("other")).on(first, f"{first}-0,NVIDIA,81920,0:;"))
    world.api.add_node(machine("n3", cards=1))
    world.watch()
    await asyncio.sleep(10)
    assert await bind_all(world, pods) == ["", ""]


@in_fake_time
async def test_a_member_gets_the_place_that_was_found_by_preferring_other_cards() -> None:
    """Spread over both cards, the small container takes the place of the large one; packed, both fit."""
    nodes = [
        node(name).gpu(f"{name}-0", memory=81920, slots=1).gpu(f"{name}-1", memory=30000, slots=1)
        for name in ("n1", "n2")
    ]
    world = World(*map(serving_downward_api, nodes))
    asking = using_downward_api(PodBuilder("p").container(gpu=1, mem=20000).container(gpu=1, mem=60000))
    pods = [asking.called(f"g-{i}").in_gang("g", 2) for i in range(2)]
    world.create(*pods)
    alone = using_downward_api(asking.called("alone"))
    assert world.filtered(alone)["NodeNames"] is None
    assert await bind_all(world, pods) == ["", ""]


@pytest.mark.parametrize("had_more_nodes", [False, True])
@in_fake_time
async def test_a_plan_that_one_member_can_never_follow_is_not_made_again_and_again(had_more_nodes: bool) -> None:
    world = World(machine("n1", cards=1), machine("n2", cards=1))
    whole, most = (using_downward_api(gpu_pod(f"g-{mem}", mem=mem)).in_gang("g", 2) for mem in (81920, 81000))
    world.create(whole, most)
    if had_more_nodes:
        world.create(using_downward_api(gpu_pod("other")).on("n1", "n1-0,NVIDIA,81920,0:;"))
        assert world.filtered(most, ["n1", "n2"])["NodeNames"] is None
        world.api.delete_pod("default/other")
        world.watch()
    for _ in range(2):
        assert world.chosen(whole, ["n1"]) == "n1"
        assert world.filtered(most, ["n1"])["NodeNames"] is None
        await asyncio.sleep(10)
    assert world.filtered(whole, ["n1"])["NodeNames"] is None


@in_fake_time
async def test_an_optional_member_that_comes_first_takes_the_place_of_another_one() -> None:
    world = World(machine("n1"))
    pods = gang(3, gang_min="2")
    world.create(*pods)
    asked = [pods[2], pods[1]]
    assert await bind_all(world, asked) == ["", ""]
