"""What is concluded from answers and from what kubelet shows, without an agent around it."""

from __future__ import annotations

import pytest

from tessera.node.handover.allocation_state import (
    MAX_LOOKS,
    Allocation,
    AllocationState,
    Ambiguous,
    DownwardApi,
    Found,
    NotFound,
)
from tessera.node.handover.assignments import TO_ALLOCATE, BoundPod
from tests.support.handover_node import bound, entry, view

A, B, AB = "a/1/1", "b/1/1", "a/1/1 b/1/1"
P = view(bound("p", A, B))
D = view(bound("d", A, downward_api=[0], at=1))
E = view(bound("e", A, downward_api=[0], at=2))


def state_with(*allocations: Allocation) -> AllocationState:
    state = AllocationState(downward_api=True)
    for each in allocations:
        state.add(each)
    return state


def answer(ids: str, *askers: tuple[BoundPod, int]) -> Allocation:
    """With the slice of the first asker, unless that one uses the downward API."""
    pod, position = askers[0]
    claim = None if pod.uses_downward_api else pod.assignment(position)
    return Allocation(frozenset(ids.split()), frozenset((each.key.uid, at) for each, at in askers), claim)


def show(state: AllocationState, *held: tuple[BoundPod, int, str]) -> None:
    """kubelet shows which containers hold which devices."""
    shown = {(*pod.key[:2], f"c{at}"): tuple(ids.split()) for pod, at, ids in held}
    state.confirm(shown, [pod for pod, _, _ in held], inherited=())


def askers(*containers: tuple[BoundPod, int]) -> frozenset[tuple[str, int]]:
    return frozenset((pod.key.uid, at) for pod, at in containers)


def found_at(state: AllocationState, pod: BoundPod) -> int:
    """The position of the only container that can be asking for one device."""
    found = state.find([pod], 1)
    assert isinstance(found, Found)
    assert found.is_certain
    return found.assignment.position


# -- what kubelet shows


def test_kubelet_is_asked_about_an_answer_a_limited_number_of_times() -> None:
    state = state_with(answer("x", (P, 0)), answer("y", (D, 0)))
    for _ in range(MAX_LOOKS):
        assert state.awaits_holder
        show(state, (D, 0, "y"))
    assert not state.awaits_holder


def test_an_answer_that_one_container_got_leaves_the_other_answers_to_the_other_containers() -> None:
    first, second = answer("x", (P, 0), (D, 0)), answer("y", (P, 0), (D, 0))
    state = state_with(first, second)
    show(state, (P, 0, "y"))
    assert (first.askers, second.askers) == (askers((D, 0)), askers((P, 0)))
    assert not first.is_settled, "a pod that is not known here may have asked"
    assert second.is_settled


def test_an_answer_that_several_init_containers_can_have_got_is_left_to_all_of_them() -> None:
    pod = view(bound("inits", A, A, A, inits=2))
    first, second = answer("x", (pod, 0), (D, 0)), answer("x", (pod, 0), (pod, 1), (D, 0))
    state = state_with(first, second, answer("x", (pod, 2), (D, 0)))
    show(state, (pod, 2, "x"))
    assert second.askers == askers((pod, 1))
    assert first.askers == askers((pod, 0))


def test_devices_of_one_pod_say_nothing_about_the_answers_of_others() -> None:
    others = answer("x", (D, 0), (E, 0))
    state = state_with(others, answer("y", (P, 0)))
    show(state, (P, 0, "y"))
    assert others.askers == askers((D, 0), (E, 0))


def test_an_answer_without_a_slice_is_not_taken_from_the_pod_that_got_it() -> None:
    """It was noted for the first pod that can have asked, and so was the next one, which that pod got."""
    state = state_with(answer("x", (D, 0)))
    state.doubt()
    state.add(answer("y", (D, 0)))
    show(state, (D, 0, "y"), (E, 0, "x"))
    assert (set(state.done(D)), set(state.done(E))) == ({0}, {0})


# -- which container asks


def test_a_container_that_kubelet_has_shown_does_not_ask() -> None:
    state = state_with(answer("x", (D, 0)))
    assert isinstance(state.find([D], 1), DownwardApi)
    show(state, (D, 0, "x"))
    assert state.find([D], 1) == NotFound()


def with_leftover(*containers: str) -> tuple[AllocationState, BoundPod]:
    """A pod of one init container whose second container has its devices. An earlier answer may have been for it too:
    the other pod that can have asked for that is gone."""
    pod, gone = view(bound("p", *containers, inits=1)), view(bound("gone", A, downward_api=[0]))
    state = state_with(answer("x", (pod, 0), (gone, 0)))
    state.forget(gone.key.uid)
    state.add(answer("i", (pod, 0), (D, 0)))
    state.add(answer("i", (pod, 1), (D, 0)))
    show(state, (pod, 1, "i"))
    return state, pod


def test_a_dependent_pod_that_may_have_come_to_its_next_container_is_not_answered_without_a_slice() -> None:
    state, pod = with_leftover(A, A, A)
    assert state.find([pod, D], 1) == Ambiguous((pod.key,))


@pytest.mark.parametrize("containers", [(A, A, AB), (AB, A)], ids=["has its devices", "not its turn"])
def test_a_dependent_pod_that_cannot_be_asking_keeps_no_other_from_its_answer(containers: tuple[str, ...]) -> None:
    if len(containers) == 3:
        state, pod = with_leftover(*containers)
    else:
        state, pod = state_with(), view(bound("p", *containers))
    found = state.find([pod, D], 1)
    assert isinstance(found, DownwardApi)
    assert found.assignment.pod == D.key


# -- pods that are gone


def test_answers_that_no_pod_can_have_asked_for_are_dropped() -> None:
    state = state_with(answer("x", (D, 0), (E, 0)))
    state.doubt()
    state.forget(D.key.uid)
    assert [each.askers for each in state] == [askers((E, 0))]
    state.forget(E.key.uid)
    assert (list(state), state.is_unsettled) == ([], False)


def test_nothing_is_known_of_a_pod_that_is_gone() -> None:
    """It may be shown again with the same uid, after a client took its annotations away for a moment."""
    state = state_with(answer("x", (P, 0)))
    show(state, (P, 0, "x"))
    assert found_at(state, P) == 1
    state.failed.add(P.key.uid)
    state.forget(P.key.uid)
    assert found_at(state, P) == 0


def test_an_answer_that_was_taken_back_is_due_until_its_pod_is_gone() -> None:
    written = view(bound("p", A, B, annotations={TO_ALLOCATE: ";" + entry(B)}))
    other = view(bound("q", A, B, annotations={TO_ALLOCATE: ";" + entry(B)}))
    taken_back = [answer("x", (written, 0)), answer("y", (other, 0))]
    state = state_with(*taken_back)
    for each in taken_back:
        state.take_back(each)
    assert (found_at(state, written), found_at(state, other)) == (0, 0)
    state.forget(written.key.uid)
    assert (found_at(state, written), found_at(state, other)) == (1, 0)
