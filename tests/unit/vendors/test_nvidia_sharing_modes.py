"""Sharing modes that a pod's containers cannot work with."""

from __future__ import annotations

import pytest

from tessera.core.model.requests import Constraint, ContainerRequest, PodRequest, Request
from tessera.vendors.base import Switches
from tessera.vendors.drafts import BadPod
from tessera.vendors.nvidia.backend import narrow_modes
from tessera.vendors.registry import build_vendors

EVERYTHING_ELSE = "hami-core,mps,none"


def request(*counts: int, vendor: str = "NVIDIA", mode: str | None = None) -> PodRequest:
    asks = tuple(
        ContainerRequest(f"c{i}", requests=(Request(vendor=vendor, count=count, memory=1000),))
        for i, count in enumerate(counts)
    )
    constraints = ((vendor, Constraint(mode=mode)),) if mode is not None else ()
    return PodRequest("u", "default", "p", asks, constraints)


def modes(pod: PodRequest) -> str | None:
    narrowed = narrow_modes(pod, "NVIDIA")
    assert isinstance(narrowed, Constraint)
    return narrowed.mode


@pytest.mark.parametrize(
    ("counts", "mode", "left"),
    [
        ((1,), None, EVERYTHING_ELSE),
        ((1, 1), None, EVERYTHING_ELSE),
        ((1, 2), None, "hami-core,none"),
        ((2,), "mig", "mig"),
        ((2,), "mps,hami-core", "hami-core"),
        ((1,), "mps", "mps"),
        ((1,), "mig", "mig"),
        ((2,), "something else", "something else"),
    ],
)
def test_a_pod_goes_only_to_cards_whose_mode_works_for_it(
    counts: tuple[int, ...], mode: str | None, left: str | None
) -> None:
    assert modes(request(*counts, mode=mode)) == left


def test_a_pod_that_wants_several_cards_of_mps_is_told_that_there_is_no_such_thing() -> None:
    answer = narrow_modes(request(1, 2, mode="mps"), "NVIDIA")
    assert isinstance(answer, BadPod)
    assert answer.container == "c1"
    assert "one at a time" in answer.text


def test_other_vendors_have_no_such_modes() -> None:
    vendor = build_vendors(None, Switches())["DCU"]
    assert vendor.narrow(request(2, vendor="DCU")) == Constraint()
