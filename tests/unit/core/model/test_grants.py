"""What a pod holds of a card: Kubernetes' effective-request rule, in every combination of roles."""

from __future__ import annotations

import pytest

from tessera.core.model.grants import Span, Use, effective_use
from tessera.core.model.requests import Role

INIT, SIDECAR, APP = Span(Role.INIT), Span(Role.SIDECAR), Span(Role.APP)
DONE = Span(Role.INIT, finished=True)


def gib(number: int) -> Use:
    return Use(slots=1, memory=number, cores=number)


@pytest.mark.parametrize(
    ("spans", "amounts", "slots", "held"),
    [
        ([], [], 0, 0),
        ([APP], [4], 1, 4),
        ([APP, APP], [4, 3], 2, 7),
        ([INIT, APP], [5, 4], 1, 5),
        ([INIT, APP], [4, 5], 1, 5),
        ([INIT, INIT, APP], [2, 7, 4], 1, 7),
        ([INIT, APP, APP], [5, 4, 3], 2, 7),
        ([SIDECAR, APP], [2, 4], 2, 6),
        ([SIDECAR, SIDECAR], [2, 3], 2, 5),
        ([SIDECAR, INIT, APP], [2, 5, 4], 2, 7),
        ([INIT, SIDECAR, APP], [9, 2, 4], 2, 9),
        ([SIDECAR, INIT, SIDECAR, APP], [1, 9, 2, 3], 3, 10),
        ([DONE, APP], [9, 4], 1, 4),
        ([DONE, INIT, APP], [9, 5, 4], 1, 5),
        ([DONE], [9], 0, 0),
    ],
)
def test_roles_decide_what_runs_at_the_same_time(spans: list[Span], amounts: list[int], slots: int, held: int) -> None:
    uses = [(position, gib(amount), False) for position, amount in enumerate(amounts)]
    assert effective_use(spans, uses) == Use(slots, held, held)


@pytest.mark.parametrize(
    ("spans", "uses", "held"),
    [
        ([INIT, APP], [(0, gib(5), True), (1, gib(4), True)], Use(2, 9, 9)),
        ([DONE, APP], [(0, gib(5), True), (1, gib(4), True)], Use(2, 9, 9)),
        ([INIT, APP], [(0, gib(5), True), (1, gib(4), False)], Use(2, 9, 9)),
        ([INIT, INIT, APP], [(0, gib(5), True), (1, gib(3), False), (2, gib(1), False)], Use(2, 8, 8)),
    ],
)
def test_mig_instances_last_as_long_as_the_pod(spans: list[Span], uses: list[tuple[int, Use, bool]], held: Use) -> None:
    assert effective_use(spans, uses) == held


def test_several_slices_of_one_container_add_up() -> None:
    assert effective_use([INIT], [(0, gib(2), False), (0, gib(3), False)]) == Use(2, 5, 5)


def test_a_position_beyond_the_containers_counts_as_an_app() -> None:
    assert effective_use([INIT], [(0, gib(5), False), (7, gib(4), False), (8, gib(3), False)]) == Use(2, 7, 7)


def test_without_known_containers_everything_adds_up() -> None:
    assert effective_use((), [(0, gib(5), False), (1, gib(4), False)]) == Use(2, 9, 9)


@pytest.mark.parametrize("finished", [False, True])
def test_core_ids_are_all_held_and_never_added(finished: bool) -> None:
    spans = [Span(Role.INIT, finished=finished), SIDECAR, APP]
    uses = [(0, Use(1, 0, 0b001), False), (1, Use(1, 0, 0b010), False), (2, Use(1, 0, 0b011), True)]
    assert effective_use(spans, uses, core_masks=True) == Use(2, 0, 0b011)
