from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec
import pytest

from tessera.kube.leases import Lease, LeaseMetadata, LeaseSpec, LeaseWatch, boottime, is_leader

NOON = 1_793_880_000.0
"""unix time in seconds"""


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
    assert is_leader(held, "host-1", 100.0, 100.0) is leads


def test_a_host_with_an_underscore_leads_under_its_whole_name() -> None:
    assert is_leader(lease("my_host_b1946ac9"), "my_host", 0.0, 1.0)
    assert not is_leader(lease("my_host_b1946ac9"), "my", 0.0, 1.0)


def test_no_host_leads_no_lease() -> None:
    assert not is_leader(lease("_x"), "", 0.0, 1.0)


@pytest.mark.parametrize(("now", "leads"), [(100.0, True), (109.9, True), (110.0, False), (1000.0, False)])
def test_a_lease_that_is_not_renewed_runs_out_here_before_another_host_may_take_it(now: float, leads: bool) -> None:
    assert is_leader(lease("host-1_x"), "host-1", 100.0, now) is leads


class Machine:
    """A lease watch, and the clocks of its machine."""

    def __init__(self) -> None:
        self.time = 100.0
        self.skew = 0.0
        """seconds by which the wall clock was set"""
        self.watch = LeaseWatch("host-1", clock=lambda: self.time, now=self.now)

    def now(self) -> float:
        return NOON + self.time + self.skew

    def see(self, holder: str = "host-1_x", *, ago: float = 0.0, transitions: int = 0, seconds: int = 15) -> None:
        """A renewal that began so many seconds ago reaches this machine."""
        moment = datetime.fromtimestamp(self.now() - ago, UTC).isoformat().replace("+00:00", "Z")
        spec = LeaseSpec(holder, lease_duration_seconds=seconds, renew_time=moment, lease_transitions=transitions)
        self.watch.put("kube-system/hami-scheduler", Lease(spec=spec))

    @property
    def leads(self) -> bool:
        return self.watch.tenure() is not None


def test_a_lease_counts_from_its_last_change_not_from_the_last_look() -> None:
    machine = Machine()
    watch = machine.watch
    assert not machine.leads
    machine.see()
    watch.synced()
    assert machine.leads
    machine.time = 109.9
    assert machine.leads
    machine.see(ago=9.9)  # The same once more.
    machine.time = 111.0
    assert not machine.leads
    machine.see()
    assert machine.leads
    watch.drop("kube-system/hami-scheduler")
    assert not machine.leads


def test_a_lease_counts_from_the_beginning_of_its_renewal_however_late_that_is_seen() -> None:
    machine = Machine()
    machine.see(ago=9.5)
    assert machine.leads
    machine.time += 0.6
    assert not machine.leads
    machine.see(ago=20.0)
    assert not machine.leads


def test_a_wall_clock_that_is_set_never_makes_a_lease_longer() -> None:
    machine = Machine()
    machine.see()
    machine.skew = -3600.0
    machine.time += 9.9
    assert machine.leads
    machine.time += 0.1
    assert not machine.leads
    machine.see(ago=-3600.0)  # Renewed before the clock was set back: nothing says when.
    assert not machine.leads
    machine.time += 15.0
    machine.see()
    assert machine.leads


def test_a_renewal_that_comes_late_is_not_taken_for_a_new_one_by_a_clock_that_was_set_back() -> None:
    machine = Machine()
    machine.see()
    machine.time, machine.skew = machine.time + 20.0, -16.0
    machine.see(ago=4.0)  # It is 20 seconds old.
    assert not machine.leads


@pytest.mark.parametrize("renewed", [None, "", "soon", "0001-01-01T00:00:00", "9999-12-31T23:59:59Z"])
def test_a_lease_whose_renewal_cannot_be_read_gives_no_tenure(renewed: str | None) -> None:
    machine = Machine()
    machine.watch.put("kube-system/hami-scheduler", Lease(spec=LeaseSpec("host-1_x", 15, renew_time=renewed)))
    assert not machine.leads


def test_an_absurd_duration_is_cut_off() -> None:
    machine = Machine()
    machine.see(seconds=2**31 - 1)
    machine.time += 100.0
    assert not machine.leads


def test_a_renewal_goes_on_with_the_tenure_and_a_gap_or_another_holder_ends_it() -> None:
    machine = Machine()
    machine.see()
    first = machine.watch.tenure()
    assert first is not None
    machine.time += 2.0
    machine.see()
    assert machine.watch.tenure() == first
    machine.time += 60.0
    assert not machine.leads
    machine.see()
    second = machine.watch.tenure()
    assert second not in (None, first), "another host may have had it in between"
    machine.see("host-2_y", transitions=1)
    assert not machine.leads
    machine.time += 15.0
    machine.see(transitions=2)
    assert machine.watch.tenure() not in (None, first, second)


def test_a_lease_that_is_given_up_is_taken_without_a_wait() -> None:
    machine = Machine()
    machine.see("host-2_y")
    machine.see("", seconds=1)
    machine.see(transitions=1)
    assert machine.leads


@pytest.mark.parametrize("transitions", [0, 1, 2])
def test_a_lease_that_was_overwritten_counts_once_its_last_holder_has_stopped_believing_in_it(transitions: int) -> None:
    machine = Machine()
    machine.see("host-2_y")
    machine.time += 5.0
    machine.see(transitions=transitions)
    for _ in range(9):
        assert not machine.leads
        machine.time += 1.0
        machine.see(transitions=transitions)
    machine.time += 1.0
    assert machine.leads


def test_a_lease_that_was_deleted_counts_again_once_others_have_stopped_believing_in_it() -> None:
    machine = Machine()
    machine.see("host-2_y")
    machine.watch.drop("kube-system/hami-scheduler")
    machine.see()
    assert not machine.leads
    machine.time += 9.0
    machine.see()
    machine.time += 1.0
    assert machine.leads


def test_a_tenure_of_another_host_between_two_looks_is_noticed() -> None:
    machine = Machine()
    machine.see()
    first = machine.watch.tenure()
    machine.see(transitions=2)
    assert machine.watch.tenure() is None
    machine.time += 9.0
    machine.see(transitions=2)
    machine.time += 1.0
    assert machine.watch.tenure() not in (None, first)


def test_the_clock_of_a_lease_never_goes_back_and_counts_what_the_machine_slept() -> None:
    awake = time.monotonic()
    assert awake <= boottime() <= boottime()


def test_a_lease_is_read_as_the_apiserver_writes_it() -> None:
    text = b"""{"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
        "metadata":{"name":"hami-scheduler","namespace":"kube-system","resourceVersion":"42","uid":"u"},
        "spec":{"holderIdentity":"host-1_b1946ac9","leaseDurationSeconds":15,"leaseTransitions":3,
                "acquireTime":"2026-11-05T12:00:00.000000Z","renewTime":"2026-11-05T12:05:00.000000Z"}}"""
    read = msgspec.json.decode(text, type=Lease)
    assert (read.spec.holder_identity, read.spec.lease_duration_seconds) == ("host-1_b1946ac9", 15)
    assert read.metadata.resource_version == "42"
