"""Which folders may go, and which stay because somebody may be using them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from tessera.host.writable_dirs import ids_dir_name
from tessera.node.handover.assignments import Assignment
from tessera.node.modes.hami_core import GRACE_S, DirRetention
from tests.support.sharing_modes import claim

ONE = claim(uid="uid-1")
TWO = claim(uid="uid-2")
HELD_BY_NOBODY: Collection[Collection[str]] = ()


def goes(
    keeping: DirRetention, name: str, *, live: Sequence[Assignment] = (), held: Collection[Collection[str]] | None = ()
) -> bool:
    """Whether a folder that is looked at for the whole grace period goes at its end, and not before."""
    assert keeping.take_unused([name], live=live, held=held, now=0.0) == []
    assert keeping.take_unused([name], live=live, held=held, now=GRACE_S - 1) == []
    return keeping.take_unused([name], live=live, held=held, now=GRACE_S) == [name]


def test_a_folder_whose_container_is_gone_goes_after_the_grace_period() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert goes(keeping, "uid-1_main")


@pytest.mark.parametrize(
    ("live", "stays"),
    [([ONE], True), ([TWO], False), ([claim(uid="uid-1", container="other")], False), ([], False)],
)
def test_a_folder_stays_while_its_container_lives(live: list[Assignment], stays: bool) -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert goes(keeping, "uid-1_main", live=live) is not stays


def test_a_folder_stays_while_the_container_lives_that_swapped_with_its_own() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert not goes(keeping, "uid-1_main", live=[TWO], held=[("a-0",)])


def test_ids_that_were_given_again_hold_the_new_folder_and_not_the_old_one() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    keeping.on_handed_over("uid-2_main", ["a-0"])
    assert goes(keeping, "uid-1_main", live=[TWO], held=[("a-0",)])


@pytest.mark.parametrize(("held", "stays"), [([("b-1", "a-0")], True), ([("a-0",)], False), ([], False)])
def test_a_folder_of_ids_stays_while_a_container_holds_exactly_them(held: list[tuple[str, ...]], stays: bool) -> None:
    assert goes(DirRetention(), ids_dir_name(["a-0", "b-1"]), live=[ONE], held=held) is not stays


def test_where_nobody_can_tell_everything_stays_while_any_pod_lives() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert not goes(keeping, "uid-1_main", live=[TWO], held=None)
    assert not goes(keeping, ids_dir_name(["a-0"]), live=[TWO], held=None)
    assert goes(keeping, "uid-1_main", live=[], held=None)


def test_a_folder_of_an_earlier_process_stays_until_the_pods_of_that_time_are_gone() -> None:
    keeping = DirRetention()
    assert not goes(keeping, "uid-1_main", live=[TWO])
    assert goes(keeping, "uid-1_main", live=[claim(uid="uid-3")])


def test_a_reason_that_is_back_starts_the_grace_period_anew() -> None:
    keeping = DirRetention()
    name = ids_dir_name(["a-0"])
    assert keeping.take_unused([name], live=[], held=[], now=0.0) == []
    assert keeping.take_unused([name], live=[], held=[("a-0",)], now=500.0) == []
    assert keeping.take_unused([name], live=[], held=[], now=GRACE_S) == []
    assert keeping.take_unused([name], live=[], held=[], now=2 * GRACE_S) == [name]


def test_a_handover_starts_the_grace_period_anew() -> None:
    keeping = DirRetention()
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=0.0) == []
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=GRACE_S) == []


def test_not_knowing_for_a_while_starts_the_grace_period_anew() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    assert keeping.take_unused(["uid-1_main"], live=[TWO], held=[], now=0.0) == []
    assert keeping.take_unused(["uid-1_main"], live=[TWO], held=None, now=500.0) == []
    assert keeping.take_unused(["uid-1_main"], live=[TWO], held=[], now=GRACE_S) == []


def test_a_folder_that_somebody_else_removed_is_forgotten() -> None:
    keeping = DirRetention()
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=0.0) == []
    assert keeping.take_unused([], live=[], held=[], now=1.0) == []
    assert keeping.take_unused(["uid-1_main"], live=[], held=[], now=GRACE_S) == []


def test_what_was_made_for_whom_is_forgotten_with_the_folder() -> None:
    keeping = DirRetention()
    keeping.on_handed_over("uid-1_main", ["a-0"])
    for _ in range(2):
        keeping.take_unused([], live=[TWO], held=[], now=0.0)
    # Known to nobody by now, so it may be a folder of an earlier process.
    assert not goes(keeping, "uid-1_main", live=[TWO])
