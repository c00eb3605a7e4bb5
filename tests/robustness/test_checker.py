"""The checker catches hand-made bad histories, and has nothing to say about good ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tests.robustness.checker import BOUND_S, Violation, check, excerpt, use_of
from tests.robustness.history import (
    Ask,
    BindCalled,
    CalmBegan,
    Card,
    Event,
    EventSeen,
    FaultBegan,
    FilterAnswered,
    NodeShown,
    PodGone,
    PodShown,
    RestReached,
    RunEnded,
    StormBegan,
    WriteSent,
    encode,
    read,
)

ONE = Ask(1, 1000, 0)
WHOLE = Ask(1, 1000, 100)


def grant(card: str, *, memory: int = 1000, cores: int = 0) -> str:
    return f"{card},NVIDIA,{memory},{cores}:;"


@dataclass
class Story:
    """A history of node n with two cards, c1 and c2, and of node m with one, c3. Every event takes a second."""

    events: list[Event] = field(default_factory=list)
    asks: dict[str, list[Ask]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, cards in (("n", ("c1", "c2")), ("m", ("c3",))):
            shown = {card: Card(2, 8000, 100) for card in cards}
            self.add(NodeShown(at=self.now, revision=self.revision, name=name, cards=shown, is_hami=name == "m"))

    @property
    def now(self) -> float:
        return float(len(self.events))

    @property
    def revision(self) -> int:
        return len(self.events) + 1

    def add(self, event: Event) -> Story:
        self.events.append(event)
        return self

    def create(self, name: str, *asks: Ask) -> Story:
        self.asks[name] = list(asks)
        return self.show(name, phase="Pending")

    def decide(self, name: str, grants: str, *, node: str = "n") -> Story:
        self.add(FilterAnswered(at=self.now, replica="a", uid=name, nodes=[node]))
        self.add(BindCalled(at=self.now, replica="a", uid=name, node=node))
        return self.add(WriteSent(at=self.now, replica="a", uid=name, node=node, grants=grants))

    def show(
        self,
        name: str,
        *,
        node: str = "",
        grants: str = "",
        phase: str = "Pending",
        ended: Sequence[int] = (),
    ) -> Story:
        return self.add(
            PodShown(
                at=self.now,
                revision=self.revision,
                key=f"t/{name}",
                uid=name,
                asks=self.asks[name],
                node=node,
                grants=grants,
                ended=list(ended),
                phase=phase,
            )
        )

    def bind(self, name: str, grants: str, *, node: str = "n") -> Story:
        return self.decide(name, grants, node=node).show(name, node=node, grants=grants)

    def run(self, name: str, *asks: Ask, grants: str, node: str = "n") -> Story:
        return self.create(name, *asks).bind(name, grants, node=node)

    def remove(self, name: str) -> Story:
        return self.add(PodGone(at=self.now, revision=self.revision, key=f"t/{name}", uid=name))

    def calm(self) -> Story:
        return self.add(CalmBegan(at=self.now))

    def end(self, *, after_s: float = 0.0) -> Story:
        return self.add(RunEnded(at=self.now + after_s))

    @property
    def kinds(self) -> list[str]:
        return [violation.kind for violation in check(self.events)]


# -- more than there is


def test_pods_that_fill_a_card_are_no_violation() -> None:
    story = Story().run("p", Ask(1, 4000, 50), grants=grant("c1", memory=4000, cores=50))
    assert story.run("q", Ask(1, 4000, 50), grants=grant("c1", memory=4000, cores=50)).kinds == []


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (Ask(1, 4000, 0), Ask(1, 4001, 0), "8001 of 8000 MiB"),
        (Ask(1, 1000, 60), Ask(1, 1000, 41), "101 of 100 cores"),
        (WHOLE, ONE, "2 pods share it"),
    ],
    ids=["memory", "cores", "exclusive"],
)
def test_a_card_that_is_given_twice_is_found(first: Ask, second: Ask, text: str) -> None:
    story = Story()
    for name, ask in (("p", first), ("q", second)):
        story.run(name, ask, grants=grant("c1", memory=ask.memory or 0, cores=ask.cores))
    (found,) = check(story.events)
    assert (found.kind, found.uids) == ("over-allocated", ("p", "q"))
    assert text in found.text


def test_too_many_slots_are_found() -> None:
    story = Story()
    for name in ("p", "q", "r"):
        story.run(name, ONE, grants=grant("c1"))
    assert story.kinds == ["over-allocated"]


def test_a_moment_is_enough() -> None:
    """At rest everything is right again."""
    story = Story().run("p", WHOLE, grants=grant("c1", cores=100)).run("q", WHOLE, grants=grant("c1", cores=100))
    assert story.remove("p").kinds == ["over-allocated"]


@pytest.mark.parametrize("phase", ["Succeeded", "gone"])
def test_a_pod_that_ended_holds_nothing(phase: str) -> None:
    story = Story().run("p", WHOLE, grants=grant("c1", cores=100))
    story.remove("p") if phase == "gone" else story.show("p", node="n", grants=grant("c1", cores=100), phase=phase)
    assert story.run("q", WHOLE, grants=grant("c1", cores=100)).kinds == []


def test_an_init_container_counts_alone_and_until_it_ends() -> None:
    asks = [Ask(1, 8000, 100, is_init=True), Ask(1, 1000, 10)]
    grants = "c1,NVIDIA,8000,100:;c1,NVIDIA,1000,10:;"
    story = Story().run("p", *asks, grants=grants)
    pod = story.events[-1]
    assert isinstance(pod, PodShown)
    assert use_of(pod) == {"c1": (1, 8000, 100)}
    story.show("p", node="n", grants=grants, ended=[0]).run("q", ONE, grants=grant("c1"))
    assert story.kinds == []


# -- decisions


@pytest.mark.parametrize("missing", [FilterAnswered, BindCalled, WriteSent])
def test_a_grant_needs_a_filter_answer_a_bind_call_and_a_binding(missing: type[Event]) -> None:
    events = [event for event in Story().run("p", ONE, grants=grant("c1")).events if not isinstance(event, missing)]
    assert [violation.kind for violation in check(events)] == ["undecided"]


def test_the_grant_must_be_the_one_that_was_written() -> None:
    story = Story().create("p", ONE).decide("p", grant("c2")).show("p", node="n", grants=grant("c1"))
    assert story.kinds == ["undecided"]


def test_a_pod_without_devices_needs_no_decision() -> None:
    assert Story().create("p", Ask(0, None, 0)).show("p", node="n").kinds == []


@pytest.mark.parametrize(("node", "grants"), [("m", grant("c3")), ("n", grant("c2"))], ids=["node", "card"])
def test_a_binding_never_changes(node: str, grants: str) -> None:
    assert Story().run("p", ONE, grants=grant("c1")).bind("p", grants, node=node).kinds == ["bound twice"]


@pytest.mark.parametrize(
    "grants",
    [
        pytest.param("", id="none"),
        pytest.param(grant("c1", memory=999), id="less memory"),
        pytest.param(grant("c1", cores=1), id="other cores"),
        pytest.param(grant("c3"), id="another node's card"),
        pytest.param("c1,NVIDIA,1000,0:c2,NVIDIA,1000,0:;", id="two cards"),
    ],
)
def test_a_pod_gets_exactly_what_it_asked_for(grants: str) -> None:
    assert Story().run("p", ONE, grants=grants).kinds == ["wrong grant"]


def test_one_card_twice_is_not_two_cards() -> None:
    story = Story().run("p", Ask(2, 1000, 0), grants="c1,NVIDIA,1000,0:c1,NVIDIA,1000,0:;")
    assert "wrong grant" in story.kinds


def test_a_whole_card_is_its_memory() -> None:
    assert Story().run("p", Ask(1, None, 0), grants=grant("c1", memory=8000)).kinds == []


def test_a_pod_that_fits_no_node_must_not_be_bound() -> None:
    assert Story().run("p", Ask(1, 9000, 0), grants=grant("c1", memory=9000)).kinds == [
        "not runnable",
        "over-allocated",
    ]


def test_a_pod_that_tesseras_agent_refused_is_found() -> None:
    story = Story().run("p", ONE, grants=grant("c1")).show("p", node="n", grants=grant("c1"), phase="Failed")
    assert story.kinds == ["failed"]
    story = Story().run("p", ONE, grants=grant("c3"), node="m").show("p", node="m", grants=grant("c3"), phase="Failed")
    assert story.kinds == []


# -- pods that wait


def test_a_pod_that_could_run_must_be_bound_in_time() -> None:
    assert Story().create("p", ONE).calm().end(after_s=BOUND_S / 2).kinds == []
    assert Story().create("p", ONE).calm().end(after_s=BOUND_S + 1).kinds == ["not bound"]


def test_a_pod_is_not_late_while_faults_happen() -> None:
    story = Story().create("p", ONE).calm().add(StormBegan(at=4.0))
    assert story.end(after_s=2 * BOUND_S).kinds == []


def test_a_pod_without_room_is_not_late() -> None:
    story = Story()
    for card in ("c1", "c2", "c3"):
        story.run(card, WHOLE, grants=grant(card, cores=100), node="m" if card == "c3" else "n")
    assert story.create("p", ONE).calm().end(after_s=2 * BOUND_S).kinds == []


def test_the_time_of_a_pod_begins_when_there_is_room() -> None:
    story = Story()
    for card in ("c1", "c2", "c3"):
        story.run(card, WHOLE, grants=grant(card, cores=100), node="m" if card == "c3" else "n")
    story.create("p", ONE).calm().add(PodGone(at=1000.0, revision=99, key="t/c1", uid="c1"))
    assert check([*story.events, RunEnded(at=1000.0 + BOUND_S / 2)]) == []
    (late,) = check([*story.events, RunEnded(at=1001.0 + BOUND_S)])
    assert (late.kind, late.uids) == ("not bound", ("p",))


def test_a_pod_that_fits_no_node_may_wait_for_ever() -> None:
    assert Story().create("p", Ask(3, 1000, 0)).calm().end(after_s=2 * BOUND_S).kinds == []


# -- rest


def test_at_rest_the_leader_counts_what_the_api_shows() -> None:
    story = Story().run("p", ONE, grants=grant("c1")).calm()
    use = {"c1": (1, 1000, 0), "c2": (0, 0, 0), "c3": (0, 0, 0)}
    assert check([*story.events, RestReached(at=9.0, replica="a", use=use)]) == []
    wrong = use | {"c2": (1, 1000, 0)}
    assert [each.kind for each in check([*story.events, RestReached(at=9.0, replica="a", use=wrong)])] == [
        "not at rest"
    ]


def test_a_container_that_sees_another_slice_is_found() -> None:
    use = dict.fromkeys(("c1", "c2", "c3"), (0, 0, 0))
    rest = RestReached(at=9.0, replica="a", use=use, wrong_slices=["t/p main: sees c2, not c1"])
    assert [each.kind for each in check([*Story().events, rest])] == ["wrong slice"]


# -- telling


def test_an_excerpt_holds_the_pods_and_the_faults_of_their_time() -> None:
    story = Story().run("other", ONE, grants=grant("c2")).add(FaultBegan(at=6.0, kind="old"))
    begins = len(story.events)
    story.create("p", WHOLE).add(FaultBegan(at=story.now, kind="pause")).bind("p", grant("c1", cores=100))
    story.run("q", WHOLE, grants=grant("c1", cores=100))
    (found,) = check(story.events)
    assert excerpt(story.events, found) == story.events[begins:]


def test_an_excerpt_leaves_out_what_changed_nothing() -> None:
    story = Story().create("p", ONE)
    created = story.events[-1]
    story.add(EventSeen(at=story.now, replica="a", uid="p", type="ADDED", revision="1"))
    story.add(FilterAnswered(at=story.now, replica="a", uid="p", nodes=[])).show("p")
    assert excerpt(story.events, Violation("not bound", "", story.now, ("p",))) == [created]


def test_a_history_is_read_as_it_was_written() -> None:
    events = Story().run("p", ONE, grants=grant("c1")).calm().end().events
    lines = [f"{encode(event)}\n".encode() for event in events]
    assert list(read([*lines, b'{"event":"po'])) == events
