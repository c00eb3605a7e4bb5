from __future__ import annotations

import platform
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera import __version__
from tessera.core.audit import BROKEN, OVERCOMMITTED, AuditFinding
from tessera.core.misfits import Reason
from tessera.core.selection import Refused
from tessera.scheduler.metrics.service_metrics import Levels, Metrics, reasons_of
from tests.support.builders import cluster, gpu_pod, node


def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


@pytest.mark.parametrize("verb", ["filter", "bind", "webhook"])
def test_answers_are_timed(verb: str) -> None:
    metrics = Metrics()
    metrics.observe(verb, 0.007)
    metrics.observe(verb, 0.25)
    found = values(metrics)
    assert found[f"tessera_{verb}_seconds_count",] == 2
    assert found[f"tessera_{verb}_seconds_sum",] == pytest.approx(0.257)
    assert found[f"tessera_{verb}_seconds_bucket", "0.01"] == 1
    assert found[f"tessera_{verb}_seconds_bucket", "+Inf"] == 2


def test_every_reason_is_there_from_the_start() -> None:
    found = values(Metrics())
    assert {found["tessera_refusals_total", reason.value] for reason in Reason} == {0}


def test_a_refusal_counts_each_of_its_reasons_once_on_however_many_nodes() -> None:
    world = cluster(*(node(f"n{i}").gpus(2, memory=1000) for i in range(5)), node("x").gpus(1, healthy=False))
    metrics = Metrics()
    for _ in range(3):
        answer = world.select(gpu_pod("p", mem=2000), [*world.ledger.node_names(), "unknown"])
        assert isinstance(answer, Refused)
        assert reasons_of(answer) == (
            Reason.CARD_INSUFFICIENT_MEMORY,
            Reason.CARD_NOT_HEALTHY,
            Reason.NODE_UNREGISTERED,
        )
        metrics.refused(answer)
        metrics.refused(answer)
    found = values(metrics)
    counted = {reason for reason in Reason if found["tessera_refusals_total", reason.value]}
    assert counted == {Reason.CARD_INSUFFICIENT_MEMORY, Reason.CARD_NOT_HEALTHY, Reason.NODE_UNREGISTERED}
    assert {found["tessera_refusals_total", reason.value] for reason in counted} == {6}


def test_levels_are_shown_as_they_are_now() -> None:
    metrics = Metrics()
    metrics.set_levels(Levels(in_handover=1, awaiting_turn=2, reserved=3, refused=4))
    found = values(metrics)
    names = ("tessera_pods_in_handover", "tessera_pods_awaiting_turn", "tessera_reservations", "tessera_pods_refused")
    assert [found[name,] for name in names] == [1, 2, 3, 4]
    metrics.set_levels(Levels())
    assert values(metrics)["tessera_reservations",] == 0


def test_writes_events_leadership_and_the_certificate_are_shown() -> None:
    metrics = Metrics()
    metrics.wrote("bind")
    metrics.wrote("bind")
    metrics.wrote("patch")
    metrics.dropped_events()
    metrics.dropped_events(4)
    metrics.set_leader(True)
    metrics.set_certificate_expiry(1_800_000_000.0)
    found = values(metrics)
    assert found["tessera_api_writes_total", "bind"] == 2
    assert found["tessera_api_writes_total", "patch"] == 1
    assert found["tessera_events_dropped_total",] == 5
    assert found["tessera_leader",] == 1
    assert found["tessera_certificate_expiry_timestamp_seconds",] == 1_800_000_000
    metrics.set_leader(False)
    assert values(metrics)["tessera_leader",] == 0


def over(node: str, card: str) -> AuditFinding:
    return AuditFinding(OVERCOMMITTED, node, card, "11 of 10 slots granted")


def drift(node: str) -> AuditFinding:
    return AuditFinding(BROKEN, node, "", "score 1, not 2")


def alarms(metrics: Metrics) -> tuple[float, float]:
    found = values(metrics)
    return found["tessera_devices_overallocated",], found["tessera_ledger_drift",]


def test_findings_stay_until_their_node_is_audited_again() -> None:
    metrics = Metrics()
    assert alarms(metrics) == (0, 0)
    metrics.audited(["n1", "n2"], [over("n1", "a"), over("n1", "a"), over("n1", "b"), drift("n2")])
    metrics.audited(["n3"], [])
    assert alarms(metrics) == (2, 1)
    metrics.audited(["n1"], [over("n1", "b")])
    assert alarms(metrics) == (1, 1)
    metrics.audited(["n1", "n2"], [])
    assert alarms(metrics) == (0, 0)


def test_findings_go_with_their_node_but_not_those_about_quotas() -> None:
    metrics = Metrics()
    metrics.audited(["n1", ""], [over("n1", "a"), drift("")])
    metrics.keep_only(["n2"])
    assert alarms(metrics) == (0, 1)
    metrics.audited([""], [])
    assert alarms(metrics) == (0, 0)


def test_build_info_has_the_labels_of_hami() -> None:
    families = text_string_to_metric_families(Metrics().render().decode())
    labels = {one.name: one.labels for family in families for one in family.samples if one.name.endswith("build_info")}
    assert labels["hami_build_info"] == {
        "version": __version__,
        "revision": "",
        "build_date": "",
        "go_version": f"python{platform.python_version()}",
        "compiler": "cpython",
        "platform": f"{sys.platform}/{platform.machine()}",
    }
    assert labels["tessera_build_info"] == {
        "version": __version__,
        "revision": "",
        "python": platform.python_version(),
    }


def test_two_services_in_one_process_count_apart_and_nothing_tells_when_counting_began() -> None:
    one, other = Metrics(), Metrics()
    one.wrote("bind")
    assert ("tessera_api_writes_total", "bind") not in values(other)
    assert b"_created" not in one.render()


def test_gangs_are_counted() -> None:
    metrics = Metrics()
    metrics.set_levels(Levels(gangs_waiting=2, gangs_planned=1))
    metrics.gangs(bound=3, given_up=4)
    metrics.gangs(bound=1, given_up=0)
    found = values(metrics)
    assert [found[name,] for name in ("tessera_gangs_waiting", "tessera_gangs_planned")] == [2, 1]
    assert [found[name,] for name in ("tessera_gangs_bound_total", "tessera_gang_plans_given_up_total")] == [4, 4]
