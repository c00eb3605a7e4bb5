"""Which member takes which hold: its own, one that is meant for no member, or another one's in exchange."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.model.grants import Placement
from tessera.core.model.requests import PodRequest
from tessera.core.search.selection import Candidates
from tessera.scheduler.features.gangs.gang import Gang, Member, MemberState
from tessera.wire.pod_groups import PodGroup
from tests.support.builders import gpu_pod, node
from tests.support.features import gangs_of
from tests.support.stepwise_scheduler import World

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
