from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import replace

from tessera.kube.leases import LONGEST_S, Lease, LeaseMetadata, LeaseSpec, LeaseWatch, boottime, is_leader
from tests.support.builders import NOW

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
    for _ in range(3):
        machine.see()  # It may be 16 seconds old.
        assert not machine.leads
        machine.time += 1.0
    machine.time += 15.0
    machine.see()
    assert machine.leads, "what is renewed so late was renewed after the clock was set"


def test_a_renewal_is_at_most_as_much_older_as_the_clock_was_set_back() -> None:
    machine = Machine()
    machine.see()
    machine.time, machine.skew = machine.time + 5.0, -6.0
    machine.see(ago=0.5)
    assert machine.leads
    machine.time += 3.4
    assert machine.leads
    machine.time += 0.2
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


def test_a_renewal_right_after_the_lease_ran_out_is_a_new_tenure() -> None:
    machine = Machine()
    machine.see()
    first = machine.watch.tenure()
    machine.time += 10.5
    machine.see()
    assert machine.watch.tenure() not in (None, first)


def test_a_lease_that_ran_out_is_taken_by_the_next_in_turn_without_a_wait() -> None:
    machine = Machine()
    machine.see("host-2_y")
    machine.time += 10.0
    machine.see(transitions=1)
    assert machine.leads


def test_a_lease_that_ran_out_and_is_taken_out_of_turn_counts_later() -> None:
    machine = Machine()
    machine.see("host-2_y")
    machine.time += 10.0
    machine.see()
    assert not machine.leads


def test_the_last_holder_may_believe_in_the_longest_duration_that_its_lease_had() -> None:
    machine = Machine()
    machine.see("host-2_y", seconds=60)
    machine.time += 1.0
    machine.see("host-2_y")
    machine.see()
    for _ in range(8):
        machine.time += 4.9
        machine.see()
        assert not machine.leads
    machine.time += 1.0
    machine.see()
    assert machine.leads


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


STEP_S = 0.5
RETRY_S = 2.0
DURATION_S = 15
HOSTS = ("host-1", "host-2", "host-3")
ABSURD = (0, 1, 2**31 - 1)
"""durations in seconds"""


class Server:
    """Has the Lease, and a feed for each watch."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.feeds: list[deque[Lease | None]] = []
        self._serial = 0

    def write(self, spec: LeaseSpec | None) -> None:
        self._serial += 1
        if spec is None:
            self.lease = None
        else:
            uid = f"u{self._serial}" if self.lease is None else self.lease.metadata.uid
            self.lease = Lease(LeaseMetadata(uid=uid, resource_version=str(self._serial)), spec)
        for feed in self.feeds:
            feed.append(self.lease)


class Host:
    """A kube-scheduler as client-go elects it, and the scheduler beside it."""

    def __init__(self, name: str, life: Life) -> None:
        self.identity = f"{name}_x"
        self.ahead = life.rng.uniform(-3600.0, 3600.0)
        """of its wall clock"""
        self.stalled_until = 0.0
        """of its watch"""
        self.partitioned_until = 0.0
        """of its kube-scheduler"""
        self._life = life
        self._seen: tuple[LeaseSpec | None, float] = (None, 0.0)
        self._next = life.rng.uniform(0.0, RETRY_S)
        self.watch = LeaseWatch(name, clock=lambda: life.time, now=self.now)
        self._feed: deque[Lease | None] = deque()
        life.server.feeds.append(self._feed)

    def now(self) -> float:
        return NOW + self._life.time + self.ahead

    def step(self) -> None:
        if self._life.time >= self._next and self._life.time >= self.partitioned_until:
            self._next = self._life.time + RETRY_S
            self._elect()
        while self._feed and self._life.time >= self.stalled_until:
            lease = self._feed.popleft()
            if lease is None:
                self.watch.drop("lease")
            else:
                self.watch.put("lease", lease)

    def relist(self) -> None:
        """What the watch has not brought is skipped."""
        if self._feed:
            last = self._feed.pop()
            self._feed.clear()
            self._feed.append(last)

    def _elect(self) -> None:
        server, time = self._life.server, self._life.time
        spec = server.lease.spec if server.lease is not None else None
        if self._seen[0] != spec:
            self._seen = spec, time
        stamp = datetime.fromtimestamp(self.now(), UTC).isoformat().replace("+00:00", "Z")
        if spec is not None and spec.holder_identity == self.identity:
            server.write(replace(spec, renew_time=stamp, lease_duration_seconds=DURATION_S))
            return
        is_over = spec is None or time >= self._seen[1] + (spec.lease_duration_seconds or 0)
        if spec is None or not spec.holder_identity or is_over:
            transitions = 0 if spec is None else (spec.lease_transitions or 0) + 1
            server.write(LeaseSpec(self.identity, DURATION_S, stamp, stamp, transitions))

    @property
    def leads(self) -> bool:
        return self.watch.tenure() is not None


class Life:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.time = 100.0
        self.server = Server()
        self.hosts = [Host(name, self) for name in HOSTS]
        self.led = 0
        """steps in which a host led"""

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.rng.choice((0, 0, 0, 0, 0, 1, 1, 2))):
                self._disturb()
            self._step()

    def calm_down(self) -> None:
        self.server.write(None)
        for host in self.hosts:
            host.stalled_until = host.partitioned_until = 0.0
        for _ in range(round(LONGEST_S / STEP_S)):
            self._step()

    def _step(self) -> None:
        self.time += STEP_S
        for host in self.rng.sample(self.hosts, k=len(self.hosts)):
            host.step()
            leaders = [host.identity for host in self.hosts if host.leads]
            assert len(leaders) <= 1, f"{leaders} lead at {self.time}"
        self.led += bool(leaders)

    def _disturb(self) -> None:
        host, rng = self.rng.choice(self.hosts), self.rng
        match rng.choice(
            ("stall", "stall", "relist", "partition", "clock", "clock", "steal", "flap", "edit", "delete")
        ):
            case "stall":
                host.stalled_until = self.time + rng.uniform(0.0, 40.0)
            case "relist":
                host.relist()
            case "partition":
                host.partitioned_until = self.time + rng.uniform(0.0, 40.0)
            case "clock":
                host.ahead += rng.choice((-1, 1)) * rng.choice((0.3, 3.0, 12.0, 600.0, 7200.0))
            case "delete":
                self.server.write(None)
            case change if self.server.lease is not None:
                self.server.write(next(self._forged(change, self.server.lease.spec, host)))

    def _forged(self, change: str, spec: LeaseSpec, host: Host) -> Iterator[LeaseSpec]:
        if change == "steal":
            yield replace(spec, holder_identity=host.identity)
        if change == "flap":
            yield replace(spec, holder_identity="mallory_x")
        stamp = self.rng.choice(("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "soon", None))
        yield replace(spec, renew_time=stamp, lease_duration_seconds=self.rng.choice((DURATION_S, *ABSURD)))


@pytest.mark.parametrize("seed", range(10))
def test_two_hosts_never_lead_whatever_a_thief_writes_and_one_does_once_it_stops(seed: int) -> None:
    life = Life(seed)
    life.calm_down()  # A host that has seen no lease yet believes the first one.
    for _ in range(3):
        life.run(60)
        life.calm_down()
        assert any(host.leads for host in life.hosts)
    assert life.led
