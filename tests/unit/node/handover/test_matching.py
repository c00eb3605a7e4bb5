from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.node.handover.claims import Claim, PodKey
from tessera.node.handover.matching import Ambiguous, Match, Meant, Mismatched, NobodyWaits, Waiting, Welcome, match
from tests.unit.node.handover.world import bound, claims

X, Y, XX = "a/1/1", "a/2/1", "a/1/1 b/1/1"


def pod(name: str, *containers: str, carried: bool = False, doubtful: tuple[int, ...] = ()) -> Waiting:
    made = claims(bound(name, *containers, carried=list(range(len(containers))) if carried else []))
    return Waiting(made[0].pod, made, frozenset(doubtful))


def key(name: str) -> PodKey:
    return PodKey("default", name, f"uid-{name}")


def asked(*waiting: Waiting, count: int = 1, travels: bool = True, **more: object) -> Match:
    return match(waiting, count=count, travels=travels, **more)  # type: ignore[arg-type]


def names(found: tuple[Claim, ...]) -> list[str]:
    return [f"{claim.pod.name}/{claim.container}" for claim in found]


@pytest.mark.parametrize(
    ("waiting", "pod_name", "certain", "known"),
    [
        ([pod("p", X)], "p", True, True),
        ([pod("p", X), pod("q", X)], "p", True, True),
        ([pod("p", XX), pod("q", X)], "q", True, True),
        ([pod("p", X, Y), pod("q", X, Y)], "p", True, True),
        ([pod("p", X, Y), pod("q", X)], "p", True, False),
        ([pod("p", X, carried=True), pod("q", Y)], "q", False, False),
        ([pod("p", X, X, doubtful=(0,))], "p", True, False),
    ],
    ids=[
        "the only one",
        "equal ones in order",
        "the one with this number",
        "equal pods",
        "equal slices of unequal pods",
        "beside one that carries",
        "perhaps answered",
    ],
)
def test_a_claim_is_meant_where_no_other_slice_is_possible(
    waiting: list[Waiting], pod_name: str, certain: bool, known: bool
) -> None:
    found = asked(*waiting)
    assert isinstance(found, Meant)
    assert (found.claim.pod.name, found.certain, found.known) == (pod_name, certain, known)


def test_a_claim_that_was_not_answered_comes_before_one_that_may_have_been() -> None:
    found = asked(pod("p", X, X, doubtful=(0,)))
    assert isinstance(found, Meant)
    assert found.claim.position == 1


def test_where_all_may_have_been_answered_the_first_is_answered_again() -> None:
    found = asked(pod("p", X, doubtful=(0,)), pod("c", X, carried=True, doubtful=(0,)), open_answers=1)
    assert isinstance(found, Meant)
    assert found.claim.pod.name == "p"


@pytest.mark.parametrize("what", [{"uncontrolled": True}, {"slices": claims(bound("p", Y))[0].slices}])
def test_different_slices_are_ambiguous(what: dict[str, object]) -> None:
    one = pod("p", X)
    other = Waiting(key("q"), tuple(replace(claim, pod=key("q"), **what) for claim in one.claims))  # type: ignore[arg-type]
    assert asked(one, other) == Ambiguous((key("p"), key("q")))


def test_those_that_carry_their_slices_are_welcome_together() -> None:
    found = asked(pod("p", X, X, carried=True), pod("q", Y, carried=True))
    assert isinstance(found, Welcome)
    assert names(found.among) == ["p/c0", "q/c0"]


def test_a_container_behind_one_that_may_have_been_answered_may_be_next() -> None:
    found = asked(pod("p", X, X, carried=True, doubtful=(0,)), open_answers=1)
    assert isinstance(found, Welcome)
    assert names(found.among) == ["p/c0", "p/c1"]


def test_where_the_answer_carries_the_slice_everybody_depends_on_it() -> None:
    assert isinstance(asked(pod("p", X, carried=True), pod("q", Y, carried=True), travels=False), Ambiguous)


@pytest.mark.parametrize(
    ("waiting", "count", "open_answers"),
    [([], 1, 0), ([pod("p", X)], 2, 0), ([pod("p", X, XX)], 2, 0), ([pod("p", X, carried=True)], 1, 1)],
    ids=["nobody", "another number", "not next", "everybody was answered"],
)
def test_nobody_waits(waiting: list[Waiting], count: int, open_answers: int) -> None:
    assert asked(*waiting, count=count, open_answers=open_answers) == NobodyWaits()


def test_the_lock_decides_between_pods() -> None:
    found = asked(pod("p", X), pod("q", Y), owner=("default", "q"))
    assert isinstance(found, Meant)
    assert (found.claim.pod.name, found.known) == ("q", True)


def test_the_pod_of_the_lock_is_mismatched_where_nobody_else_fits() -> None:
    one = pod("p", X)
    assert asked(one, count=2, owner=("default", "p")) == Mismatched(one.claims[0])


def test_somebody_else_is_meant_where_the_pod_of_the_lock_does_not_fit() -> None:
    found = asked(pod("p", X), pod("q", XX), count=2, owner=("default", "p"))
    assert isinstance(found, Meant)
    assert found.claim.pod.name == "q"


def test_a_lock_of_a_pod_that_waits_for_nothing_says_nothing() -> None:
    assert isinstance(asked(pod("p", X), owner=("default", "finished")), Meant)


def test_the_pod_that_is_underway_is_meant_once_that_is_confirmed() -> None:
    waiting = (pod("p", X), pod("q", Y))
    assert isinstance(asked(*waiting, underway=key("q")), Ambiguous)
    found = asked(*waiting, underway=key("q"), confirmed=True)
    assert isinstance(found, Meant)
    assert found.claim.pod.name == "q"
    assert isinstance(asked(*waiting, pod("r", XX), underway=key("r"), confirmed=True), Ambiguous)
