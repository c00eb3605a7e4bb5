"""Random lives of a Lease: kube-schedulers that follow client-go's rules, watches that stall, clocks that are set, and
a thief that overwrites and deletes it. Never do two hosts lead, and once the thief is gone one does.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from tessera.kube.leases import LONGEST_S, Lease, LeaseMetadata, LeaseSpec, LeaseWatch
from tests.support.builders import NOW

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
