"""The journal's records: every value of the core comes back equal."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holdings import PodFacts
from tessera.core.model.demand_forecast import PRIOR, DemandForecast, DemandGroup, HostLoad
from tessera.core.model.devices import MIG, Device, MigPlacement, MigSlot, NodeFacts
from tessera.core.model.grants import Grant, Placement, Span
from tessera.core.model.misfits import Misfit, Reason, node_misfit
from tessera.core.model.requests import Constraint, ContainerRequest, HostRequest, PodRequest, Request, Role, Weights
from tessera.core.search.selection import MAX_REASONS, OTHER_REASONS
from tessera.core.search.selection import Refused as RefusedAnswer
from tessera.wire import journal
from tessera.wire.errors import WireError
from tessera.wire.journal import (
    CandidateMask,
    ForecastRecord,
    HostRecord,
    NodeRecord,
    Placed,
    PodRecord,
    QuotaRecord,
    Record,
    Refused,
    Start,
    decode_record,
    encode_record,
)
from tessera.wire.journal_values import Forecast, Host, NodeState, PodAsk, PodRef, PodState, grants_of
from tests.support import strategies as some

POD = PodRef("team-a", "p", "uid-p")
STAMP: dict[str, Any] = {"time": 1_700_000_000.123456, "sequence": 7}
DECISION: dict[str, Any] = STAMP | {"pod": POD, "ledger_version": 5, "microseconds": 321}


def passed_on(record: Record) -> Any:
    line = encode_record(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    found = decode_record(line)
    assert found == record
    return found


@given(st.data(), some.pools)
def test_a_node_comes_back(data: st.DataObject, pool: tuple[str, ...]) -> None:
    facts = data.draw(some.nodes("n1", pool))
    record = passed_on(NodeRecord(**STAMP, name="n1", state=NodeState.of(facts)))
    assert record.state.value(record.name) == facts


def test_every_field_of_a_card_comes_back() -> None:
    device = Device(
        uuid="G",
        vendor="NVIDIA",
        index=3,
        slots=7,
        memory=40960,
        cores=99,
        model="A100",
        numa=1,
        mode=MIG,
        healthy=False,
        mig_profiles=some.MIG_PROFILES,
        links=MappingProxyType({"H": 50}),
        custom=MappingProxyType({"NetworkID": 1, "nested": {"list": [1, "two", None, 2.5]}}),
    )
    facts = NodeFacts("n1", (device,), frozenset({"G"}), MappingProxyType({"key": "text"}), "unreadable")
    record = passed_on(NodeRecord(**STAMP, name="n1", state=NodeState.of(facts)))
    assert record.state.value("n1") == facts


@given(st.data(), some.pools)
def test_what_a_pod_holds_comes_back(data: st.DataObject, pool: tuple[str, ...]) -> None:
    facts = data.draw(some.foreign_pods(pool, "uid-p"))
    record = passed_on(PodRecord(**STAMP, uid="uid-p", state=PodState.of(facts), grants="reserved", observed=True))
    assert record.state.value(record.uid) == facts


SLOT = MigSlot("1g.5gb", MigPlacement(2, 1))
GRANT = Grant("G", "AMD", 100, 10, index=2, word="MI210", slots=3, mig=SLOT, custom=MappingProxyType({"a": "b"}))


def test_every_field_of_a_grant_comes_back() -> None:
    facts = PodFacts(
        uid="uid-p",
        namespace="team-a",
        name="p",
        node="n1",
        spans=(Span(Role.INIT, finished=True), Span(Role.SIDECAR), Span(Role.APP)),
        grants={"AMD": ((), (GRANT,), ()), "NVIDIA": ((GRANT,), (), ())},
        stray_mig=(("H", SLOT),),
        settings=(("AMD", (("key", "value"),)), ("Metax", ())),
        problem="half of it cannot be read",
    )
    record = passed_on(PodRecord(**STAMP, uid="uid-p", state=PodState.of(facts)))
    found = record.state.value("uid-p")
    assert found == facts
    assert [(one.index, dict(one.custom)) for one in found.grants["AMD"][1]] == [(2, {"a": "b"})]  # not compared


@given(st.data(), some.pools)
def test_a_request_comes_back(data: st.DataObject, pool: tuple[str, ...]) -> None:
    request = data.draw(some.pod_requests(pool, "uid-p"))
    pod = PodRef(request.namespace, request.name, request.uid)
    record = passed_on(
        journal.Unfinished(**(DECISION | {"pod": pod}), ask=PodAsk.of(request), candidates=CandidateMask(count=1))
    )
    found = record.ask.value(record.pod, some.VENDORS, {})
    assert found == request
    assert found.shape == request.shape


def test_every_field_of_a_request_comes_back_and_its_forecast_by_number() -> None:
    group = DemandGroup(2, 0.2, 1.25, 8_000, 64, ("A100",))
    forecast = DemandForecast(pressure={"A100": 0.1}, loads=(HostLoad(0.5, 1000.1, 3.3),), groups=(group,))
    request = PodRequest(
        uid="uid-p",
        namespace="team-a",
        name="p",
        containers=(
            ContainerRequest("init", Role.INIT),
            ContainerRequest("main", Role.APP, (Request("AMD", 1, 2, 3, 4), Request("NVIDIA", 2, percent=50))),
        ),
        constraints=(("AMD", Constraint(("a",), ("b",), ("c",), ("d",), "mig", (("k", "v"),))), ("B", Constraint())),
        numa_bind=True,
        node_policy="fragmentation",
        device_policy="numa,binpack",
        weights=Weights(0, 2, 3),
        host=HostRequest(1500, 64),
        forecast=forecast,
    )
    record = passed_on(journal.Unfinished(**DECISION, ask=PodAsk.of(request, 4), candidates=None))
    assert record.ask.value(record.pod, some.VENDORS, {4: forecast}) == request


RARE = DemandForecast(memory_part=0.1, pressure={"T4": 1 / 3}, whole_need=1.25, host_need=1.5625, turnover=0.375)


@pytest.mark.parametrize("forecast", [PRIOR, DemandForecast(), RARE])
def test_a_forecast_comes_back(forecast: DemandForecast) -> None:
    found = passed_on(ForecastRecord(**STAMP, id=1, forecast=Forecast.of(forecast))).forecast.value()
    for field in ("slices", "loads", "groups", "pressure", "whole_need", "host_need", "turnover", "memory_part"):
        assert getattr(found, field) == getattr(forecast, field), field


def test_a_placement_comes_back() -> None:
    placement = Placement("n1", {"AMD": ((GRANT,), ())}, 0.1 + 0.2)
    ask = PodAsk((), "binpack", "spread")
    grants = grants_of(placement.grants)
    record = passed_on(
        Placed(**DECISION, ask=ask, candidates=CandidateMask(), node="n1", grants=grants, score=placement.score)
    )
    assert record.placement() == placement


def test_a_quota_and_a_host_come_back() -> None:
    facts = QuotaFacts("team-a", "q", {"nvidia.com/gpumem": 0})
    record = passed_on(QuotaRecord(**STAMP, namespace="team-a", name="q", limits=dict(facts.limits)))
    assert record.value() == facts
    assert passed_on(QuotaRecord(**STAMP, namespace="team-a", name="q")).value() is None
    assert passed_on(QuotaRecord(**STAMP, namespace="team-a", name="q", limits={})).value() is not None
    assert passed_on(HostRecord(**STAMP, name="n1", free=Host())).free == Host()


def test_the_reasons_of_a_refusal_come_back() -> None:
    misfits = [node_misfit(Reason.NODE_UNREGISTERED), node_misfit(Reason.VENDOR_UNKNOWN)]
    answer = RefusedAnswer({"n1": misfits[0], "n2": misfits[1], "n3": misfits[1]})
    record = passed_on(
        Refused(**DECISION, ask=PodAsk((), "", ""), candidates=None, reasons=dict(answer.reason_counts), refusals=3)
    )
    assert tuple(record.reasons.items()) == answer.reason_counts
    assert answer.reason_counts == (("Device type not found", 2), ("node unregistered", 1))
    assert not record.first


def test_rare_reasons_are_counted_together() -> None:
    misfits = {f"n{i}": Misfit(((Reason.NUMA_NOT_FIT, 1),), total=i) for i in range(MAX_REASONS + 5)}
    counts = RefusedAnswer(misfits).reason_counts
    assert len(counts) == MAX_REASONS + 1
    assert counts[-1] == (OTHER_REASONS, 5)


def test_a_line_that_is_no_record_and_a_newer_format_are_errors() -> None:
    for line in (b"", b"{}", b'{"kind":"unheard-of"}', b'{"kind":"pla', b"\xff"):
        with pytest.raises(WireError):
            decode_record(line)
    start = Start(
        **STAMP,
        format=journal.FORMAT + 1,
        version="9",
        identity="x",
        device_sections=None,
        node_policy="binpack",
        device_policy="spread",
        scheduler_name="hami-scheduler",
    )
    with pytest.raises(WireError, match="format"):
        decode_record(encode_record(start))


def test_a_forecast_of_an_older_journal_has_parts_for_needs() -> None:
    older = msgspec.json.decode(b'{"groups": [[2, 0.2], [8, 0.1]]}', type=Forecast)
    assert older.value().groups == (DemandGroup(2, 0.2, 0.2), DemandGroup(8, 0.1, 0.1))
