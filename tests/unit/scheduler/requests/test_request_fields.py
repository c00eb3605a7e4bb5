"""A field of `PodRequest` is written once: shape, comparison at bind, journal and texts follow from the dataclass.

A new field fails here until `OTHER` has a value for it, and wherever that value is not seen.
"""

from __future__ import annotations

from dataclasses import fields, replace
from inspect import signature
from typing import Any

import msgspec
import pytest

from tessera.core.model.demand_forecast import DemandForecast
from tessera.core.model.requests import (
    ASKED_FIELDS,
    AttributeMatch,
    Constraint,
    ContainerRequest,
    HostRequest,
    PodRequest,
    Request,
    Role,
    Weights,
)
from tessera.inspect import request as texts
from tessera.inspect.request import RequestSummary, summarize_request
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.wire.journal_values import PodAsk, PodRef
from tests.support import strategies as some

PLAIN = PodRequest("u", "ns", "p", (ContainerRequest("main", Role.APP, (Request("NVIDIA", 1, 1000),)),))
FORECAST = DemandForecast(turnover=0.5)
OTHER: dict[str, Any] = {
    "uid": "other",
    "namespace": "other",
    "name": "other",
    "containers": (ContainerRequest("main", Role.APP, (Request("NVIDIA", 2, 1000),)),),
    "constraints": (("NVIDIA", Constraint(use_models=("t4",))),),
    "numa_bind": True,
    "node_policy": "spread",
    "device_policy": "mutex",
    "weights": Weights(memory=3),
    "matches": (AttributeMatch("gpu.tessera.io/numa", (0,)),),
    "limits": (("some-rule", 2),),
    "host": HostRequest(cpu=500),
    "forecast": FORECAST,
    "preempts_below": 7,
    "priority": 7,
    "group": "ns/gang",
}
IDENTITY = {one.name for one in fields(PodRequest)} - {one.name for one in ASKED_FIELDS}
UNSAID = {"host", "forecast"}
"""they belong to the policy"""


def changed(name: str) -> PodRequest:
    found = replace(PLAIN, **{name: OTHER[name]})
    assert getattr(found, name) != getattr(PLAIN, name)
    return found


@pytest.mark.parametrize("name", [one.name for one in fields(PodRequest)])
def test_the_shape_has_every_field_but_the_identity(name: str) -> None:
    assert (changed(name).shape == PLAIN.shape) == (name in IDENTITY)


@pytest.mark.parametrize("one", ASKED_FIELDS, ids=lambda one: one.name)
def test_a_place_that_was_found_is_given_to_no_pod_that_demands_something_else(one: Any) -> None:
    first, second = (PreparedRequest(request, uses_downward_api=True) for request in (PLAIN, changed(one.name)))
    assert first.asks_the_same(second) == ("is_preference" in one.metadata)


@pytest.mark.parametrize("one", ASKED_FIELDS, ids=lambda one: one.name)
def test_the_journal_gives_every_field_back(one: Any) -> None:
    request = changed(one.name)
    written = msgspec.json.encode(PodAsk.of(request, None if request.forecast is None else 1))
    read = msgspec.json.decode(written, type=PodAsk)
    assert read.value(PodRef("ns", "p", "u"), some.VENDORS, {1: FORECAST}) == request


def said(request: PodRequest) -> RequestSummary:
    return summarize_request(request, {}, some.VENDORS)


@pytest.mark.parametrize("name", [one.name for one in ASKED_FIELDS if one.name not in UNSAID])
def test_people_read_every_field(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(changed(name)) != said(PLAIN)
    monkeypatch.setattr(texts, "SAID", texts.SAID - {"numa_bind"})
    assert "numa bind: True" in [wish.text for wish in said(replace(PLAIN, numa_bind=True)).wishes]


def test_a_request_of_another_pod_has_another_identity_and_nothing_else() -> None:
    assert set(signature(PLAIN.called).parameters) == IDENTITY
    other = PLAIN.called(**{name: OTHER[name] for name in IDENTITY})
    assert other == replace(PLAIN, **{name: OTHER[name] for name in IDENTITY})
    assert all(getattr(other, name) == OTHER[name] for name in IDENTITY)
