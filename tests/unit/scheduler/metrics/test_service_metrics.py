from __future__ import annotations

import platform
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera import __version__
from tessera.core.ledger.audit import BROKEN, OVERCOMMITTED, AuditFinding
from tessera.core.model.misfits import Reason
from tessera.core.search.selection import Refused
from tessera.scheduler.metrics.service_metrics import Metrics, reasons_of
from tessera.scheduler.observer import RefusedEvent
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
        event = RefusedEvent(gpu_pod("p").request(), answer, is_first=True, describe=str)
        metrics.on_refused(event)
        metrics.on_refused(event)
    found = values(metrics)
    counted = {reason for reason in Reason if found["tessera_refusals_total", reason.value]}
    assert counted == {Reason.CARD_INSUFFICIENT_MEMORY, Reason.CARD_NOT_HEALTHY, Reason.NODE_UNREGISTERED}
    assert {found["tessera_refusals_total", reason.value] for reason in counted} == {6}


def test_readings_are_shown_as_they_are_when_they_are_scraped() -> None:
    metrics, now, written = Metrics(), [1], {"allocated": 1, "released": 0}
    metrics.add_gauge("pods", "Pods.", lambda: now[0])
    metrics.add_counter("claims", "Claims.", lambda: written, label="result")
    found = values(metrics)
    assert [found["pods",], found["claims_total", "allocated"], found["claims_total", "released"]] == [1, 1, 0]
    now[0], written["released"] = 0, 5
    found = values(metrics)
    assert [found["pods",], found["claims_total", "allocated"], found["claims_total", "released"]] == [0, 1, 5]


def test_writes_are_counted_by_verb() -> None:
    metrics = Metrics()
    metrics.on_write("bind")
    metrics.on_write("bind")
    metrics.on_write("patch")
    found = values(metrics)
    assert found["tessera_api_writes_total", "bind"] == 2
    assert found["tessera_api_writes_total", "patch"] == 1


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
    metrics.on_audit("n1", [over("n1", "a"), over("n1", "a"), over("n1", "b")])
    metrics.on_audit("n2", [drift("n2")])
    metrics.on_audit("n3", [])
    assert alarms(metrics) == (2, 1)
    metrics.on_audit("n1", [over("n1", "b")])
    assert alarms(metrics) == (1, 1)
    metrics.on_audit("n1", [])
    metrics.on_audit("n2", [])
    assert alarms(metrics) == (0, 0)


def test_findings_go_with_their_node() -> None:
    metrics = Metrics()
    metrics.on_audit("n1", [over("n1", "a")])
    metrics.on_audit("n2", [drift("n2")])
    metrics.keep_only(["n2"])
    assert alarms(metrics) == (0, 1)


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
    one.on_write("bind")
    assert ("tessera_api_writes_total", "bind") not in values(other)
    assert b"_created" not in one.render()
