"""Hand-made histories of gangs and evictions: the bad ones are caught, the good ones are not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.robustness.checker import Checker, check
from tests.robustness.history import (
    Ask,
    BindAnswered,
    BindCalled,
    CalmBegan,
    Card,
    Event,
    EventSeen,
    EvictionSent,
    FilterAnswered,
    Gang,
    NodeShown,
    PodGone,
    PodShown,
    RestReached,
    RunEnded,
    WriteAnswered,
    WriteSent,
)

WHOLE = Ask(1, 8000, 100)


@dataclass
class Tale:
    """A history of two nodes with two cards each, and of two replicas. Every event takes a second."""

    events: list[Event] = field(default_factory=list)
    shown: dict[str, PodShown] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("n", "m"):
            cards = {f"{name}{number}": Card(2, 8000, 100) for number in range(2)}
            self.add(NodeShown(at=self.now, revision=self.revision, name=name, cards=cards, is_hami=False))

    @property
    def now(self) -> float:
        return float(len(self.events))

    @property
    def revision(self) -> int:
        return len(self.events) + 1

    def add(self, event: Event) -> Tale:
        self.events.append(event)
        return self

    def create(self, *names: str, gang: Gang | None = None, priority: int = 0) -> Tale:
        for name in names:
            self.shown[name] = PodShown(
                at=self.now,
                revision=self.revision,
                key=f"t/{name}",
                uid=name,
                asks=[WHOLE],
                gang=gang,
                priority=priority,
            )
            self.add(self.shown[name])
        return self

    def change(self, name: str, *, node: str = "", card: str = "", leaves: bool = False) -> Tale:
        before = self.shown[name]
        self.shown[name] = PodShown(
            at=self.now,
            revision=self.revision,
            key=before.key,
            uid=name,
            asks=before.asks,
            gang=before.gang,
            priority=before.priority,
            node=node or before.node,
            grants=f"{card},NVIDIA,8000,100:;" if card else before.grants,
            is_leaving=leaves,
        )
        return self.add(self.shown[name])

    def call(self, name: str, node: str = "n", *, replica: str = "a") -> Tale:
        self.add(FilterAnswered(at=self.now, replica=replica, uid=name, nodes=[node]))
        return self.add(BindCalled(at=self.now, replica=replica, uid=name, node=node))

    def write(self, name: str, card: str, *, replica: str = "a") -> Tale:
        grants = f"{card},NVIDIA,8000,100:;"
        return self.add(WriteSent(at=self.now, replica=replica, uid=name, node=card[0], grants=grants))

    def bind(self, name: str, card: str) -> Tale:
        return self.call(name, card[0]).write(name, card).change(name, node=card[0], card=card)

    def refuse(self, name: str, *, replica: str = "a") -> Tale:
        return self.add(FilterAnswered(at=self.now, replica=replica, uid=name, nodes=[]))

    def see(self, name: str, *, kind: str = "MODIFIED", replica: str = "a") -> Tale:
        return self.add(EventSeen(at=self.now, replica=replica, uid=name, type=kind, revision=str(self.revision)))

    def evict(self, name: str, *, replica: str = "a") -> Tale:
        return self.add(EvictionSent(at=self.now, replica=replica, uid=name, key=f"t/{name}"))

    @property
    def kinds(self) -> list[str]:
        return [violation.kind for violation in check(self.events)]


def gang(size: int, minimum: int | None = None) -> Gang:
    return Gang("t/g", size, size if minimum is None else minimum)


# -- gangs


def test_a_gang_whose_members_have_all_come_is_bound() -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1").call("g2")
    assert tale.write("g1", "n0").write("g2", "n1").kinds == []


def test_a_member_that_is_bound_before_the_others_have_come_is_caught() -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1")
    assert tale.write("g1", "n0").kinds == ["partial gang"]


def test_as_many_members_as_the_gang_needs_are_enough() -> None:
    tale = Tale().create("g1", "g2", "g3", gang=gang(3, 2)).call("g1").call("g2")
    assert tale.write("g1", "n0").kinds == []


def test_a_member_that_has_come_to_another_replica_does_not_count() -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1").call("g2", replica="b")
    assert tale.write("g1", "n0").kinds == ["partial gang"]


def test_the_rest_of_a_gang_that_is_bound_in_part_follows_one_by_one() -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1").call("g2").write("g1", "n0")
    tale.change("g1", node="n", card="n0")
    assert tale.call("g2", replica="b").write("g2", "n1", replica="b").kinds == []


@pytest.mark.parametrize(("is_seen", "expected"), [(False, []), (True, ["partial gang"])])
def test_a_bound_member_counts_until_the_replica_has_seen_it_go(is_seen: bool, expected: list[str]) -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1").call("g2").write("g1", "n0").write("g2", "n1")
    tale.change("g1", node="n", card="n0").change("g2", node="n", card="n1").create("g3", gang=gang(2))
    for name in ("g1", "g2"):
        tale.add(PodGone(at=tale.now, revision=tale.revision, key=f"t/{name}", uid=name))
        if is_seen:
            tale.see(name, kind="DELETED")
    assert tale.call("g3").write("g3", "n0").kinds == expected


def test_a_member_that_waits_for_its_turn_is_bound_though_the_others_are_gone_by_then() -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1").call("g2").write("g1", "n0")
    tale.change("g1", node="n", card="n0").add(BindAnswered(at=tale.now, replica="a", uid="g1"))
    tale.add(PodGone(at=tale.now, revision=tale.revision, key="t/g1", uid="g1")).see("g1", kind="DELETED")
    assert tale.write("g2", "n1").kinds == []


def test_a_binding_that_was_refused_begins_no_gang() -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1").call("g2").write("g1", "n0")
    tale.add(WriteAnswered(at=tale.now, replica="a", uid="g1", node="n", status=409))
    tale.call("g2", replica="b")
    assert tale.write("g2", "n1", replica="b").kinds == ["partial gang"]


# -- evictions


def waiting_above(priority: int = 9) -> Tale:
    return Tale().create("low", priority=1).bind("low", "n0").create("high", priority=priority).refuse("high")


def test_a_pod_leaves_for_one_of_higher_priority() -> None:
    assert waiting_above().evict("low").kinds == []


@pytest.mark.parametrize(
    "tale",
    [
        Tale().create("low", priority=1).bind("low", "n0"),
        waiting_above(1),
        waiting_above().see("high", kind="DELETED"),
        waiting_above().bind("high", "n1").see("high"),
        Tale().create("low").bind("low", "n0").create("high", priority=9).refuse("high", replica="b"),
    ],
    ids=["none waits", "equal priority", "gone", "bound", "refused by another replica"],
)
def test_an_eviction_that_no_pod_needs_is_caught(tale: Tale) -> None:
    assert tale.evict("low").kinds == ["needless eviction"]


def test_a_preemptor_that_is_gone_counts_until_the_replica_has_seen_that() -> None:
    tale = waiting_above()
    tale.add(PodGone(at=tale.now, revision=tale.revision, key="t/high", uid="high"))
    assert tale.evict("low").kinds == []


@pytest.mark.parametrize(("replica", "expected"), [("a", ["evicted twice"]), ("b", [])])
def test_a_pod_that_the_replica_has_seen_leaving_is_not_evicted_again(replica: str, expected: list[str]) -> None:
    tale = waiting_above().refuse("high", replica="b").evict("low").change("low", leaves=True).see("low")
    assert tale.evict("low", replica=replica).kinds == expected


# -- at rest and late


@pytest.mark.parametrize(("nominations", "gangs"), [(1, 0), (0, 2)])
def test_what_is_still_held_at_rest_is_caught(nominations: int, gangs: int) -> None:
    use = {f"{name}{number}": (0, 0, 0) for name in "nm" for number in range(2)}
    tale = Tale()
    tale.add(RestReached(at=tale.now, replica="a", use=use, nominations=nominations, planned_gangs=gangs))
    assert tale.kinds == ["not at rest"]


@pytest.mark.parametrize(
    ("members", "others", "late"), [(4, 0, 4), (4, 1, 0), (3, 0, 0)], ids=["fits", "does not fit", "is not complete"]
)
def test_a_gang_is_late_only_if_all_of_it_could_run(members: int, others: int, late: int) -> None:
    tale = Tale().create(*(f"g{number}" for number in range(members)), gang=gang(4))
    for number in range(others):
        tale.create(f"o{number}").bind(f"o{number}", f"m{number}")
    tale.add(CalmBegan(at=tale.now)).add(RunEnded(at=tale.now + 500.0))
    assert [violation.kind for violation in check(tale.events)] == ["not bound"] * late


def test_the_rest_of_a_gang_that_is_begun_is_late_like_single_pods() -> None:
    tale = Tale().create("g1", "g2", gang=gang(2)).call("g1").call("g2").write("g1", "n0")
    tale.change("g1", node="n", card="n0").add(CalmBegan(at=tale.now)).add(RunEnded(at=tale.now + 500.0))
    assert tale.kinds == ["not bound"]


def test_a_checker_takes_events_one_by_one() -> None:
    checker = Checker()
    for event in waiting_above(1).evict("low").events:
        checker.take(event)
    assert [violation.uids for violation in checker.violations] == [("low",)]
