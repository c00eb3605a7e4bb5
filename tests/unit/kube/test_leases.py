from __future__ import annotations

import msgspec
import pytest

from tessera.kube.leases import Lease, LeaseMetadata, LeaseSpec, LeaseWatch, is_leader


def lease(holder: str | None, seconds: int | None = 15, renewed: str = "r1") -> Lease:
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=seconds, renew_time=renewed)
    return Lease(metadata=LeaseMetadata(name="hami-scheduler"), spec=spec)


@pytest.mark.parametrize(
    ("held", "leads"),
    [
        (lease("host-1_b1946ac9-2a6a-4ecd-9c71-a7b9dfb7c8c1"), True),
        (lease("host-1"), True),
        (lease("host-10_b1946ac9"), False),
        (lease("host_b1946ac9"), False),
        (lease("_b1946ac9"), False),
        (lease(""), False),
        (lease(None), False),
        (lease("host-1_x", None), False),
        (lease("host-1_x", 0), False),
        (lease("host-1_x", -3), False),
        (None, False),
    ],
)
def test_only_the_exact_host_leads(held: Lease | None, leads: bool) -> None:
    assert is_leader(held, "host-1", 100.0, 105.0) is leads


def test_a_host_with_an_underscore_leads_under_its_whole_name() -> None:
    assert is_leader(lease("my_host_b1946ac9"), "my_host", 0.0, 1.0)
    assert not is_leader(lease("my_host_b1946ac9"), "my", 0.0, 1.0)


def test_no_host_leads_no_lease() -> None:
    assert not is_leader(lease("_x"), "", 0.0, 1.0)


@pytest.mark.parametrize(("now", "leads"), [(100.0, True), (114.9, True), (115.0, False), (1000.0, False)])
def test_a_lease_that_is_not_renewed_runs_out(now: float, leads: bool) -> None:
    assert is_leader(lease("host-1_x"), "host-1", 100.0, now) is leads


def test_a_lease_counts_from_its_last_change_not_from_the_last_look() -> None:
    time = [100.0]
    watch = LeaseWatch("host-1", clock=lambda: time[0])
    assert not watch.leads()
    watch.put("kube-system/hami-scheduler", lease("host-1_x"))
    watch.synced()
    assert watch.leads()
    time[0] = 114.0
    watch.put("kube-system/hami-scheduler", lease("host-1_x"))
    time[0] = 116.0
    assert not watch.leads()
    watch.put("kube-system/hami-scheduler", lease("host-1_x", renewed="r2"))
    assert watch.leads()
    watch.drop("kube-system/hami-scheduler")
    assert not watch.leads()
    assert watch.lease is None


def test_a_lease_is_read_as_the_apiserver_writes_it() -> None:
    text = b"""{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
        "metadata":{"name":"hami-scheduler","namespace":"kube-system","resourceVersion":"42","uid":"u"},
        "spec":{"holderIdentity":"host-1_b1946ac9","leaseDurationSeconds":15,"leaseTransitions":3,
                "acquireTime":"2026-11-05T12:00:00.000000Z","renewTime":"2026-11-05T12:05:00.000000Z"}}"""
    read = msgspec.json.decode(text, type=Lease)
    assert (read.spec.holder_identity, read.spec.lease_duration_seconds) == ("host-1_b1946ac9", 15)
    assert read.metadata.resource_version == "42"
