"""Sharing modes that a pod's containers cannot work with."""

from __future__ import annotations

import pytest

from tessera.core.requests import Constraint, ContainerRequest, PodRequest, Request
from tessera.vendors.base import Switches
from tessera.vendors.drafts import BadPod
from tessera.vendors.nvidia.sharing_modes import narrow_modes
from tessera.vendors.registry import build_vendors

EVERYTHING_ELSE = "hami-core,mps,none"


def request(*counts: int, vendor: str = "NVIDIA", mode: str | None = None) -> PodRequest:
    asks = tuple(
        ContainerRequest(f"c{i}", requests=(Request(vendor=vendor, count=count, memory=1000),))
        for i, count in enumerate(counts)
    )
    constraints = ((vendor, Constraint(mode=mode)),) if mode is not None else ()
    return PodRequest("u", "default", "p", asks, constraints)


def modes(pod: PodRequest, *, has_references: bool = True) -> str | None:
    narrowed = narrow_modes(pod, "NVIDIA", has_references=has_references)
    assert isinstance(narrowed, Constraint)
    return narrowed.mode


@pytest.mark.parametrize(
    ("counts", "mode", "has_references", "left"),
    [
        ((1,), None, True, EVERYTHING_ELSE),
        ((1,), None, False, None),
        ((1, 1), None, True, EVERYTHING_ELSE),
        ((1, 2), None, True, "hami-core,none"),
        ((2,), None, False, "hami-core,mig,none"),
        ((2,), "mig", False, "mig"),
        ((2,), "mps,hami-core", True, "hami-core"),
        ((1,), "mps", True, "mps"),
        ((1,), "mig", True, "mig"),
        ((2,), "something else", True, "something else"),
    ],
)
def test_a_pod_goes_only_to_cards_whose_mode_works_for_it(
    counts: tuple[int, ...], mode: str | None, has_references: bool, left: str | None
) -> None:
    assert modes(request(*counts, mode=mode), has_references=has_references) == left


def test_a_pod_that_wants_several_cards_of_mps_is_told_that_there_is_no_such_thing() -> None:
    answer = narrow_modes(request(1, 2, mode="mps"), "NVIDIA", has_references=True)
    assert isinstance(answer, BadPod)
    assert answer.container == "c1"
    assert "one at a time" in answer.text


def test_other_vendors_have_no_such_modes() -> None:
    vendor = build_vendors(None, Switches())["DCU"]
    assert vendor.narrow(request(2, vendor="DCU"), has_references=True) == Constraint()
