"""Over any sequence of grants, releases and registrations, granted and idle seconds add up to the time of the cards."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tessera.core.ledger.ledger import Ledger
from tessera.scheduler.metrics.granted_time import GrantedTime, share_of
from tessera.services.gpu_time import SeriesKey
from tessera.wire.objects import Workload
from tests.support import strategies as some
from tests.support.strategies import examples

STEPS = 30
WORKLOADS = st.sampled_from(
    [Workload("team-a", "Deployment", "web"), Workload("team-a", "Job", "train"), Workload("team-b")]
)


class Counted(RuleBasedStateMachine):
    """A ledger and its counters, beside a plain sum over all cards at every step of time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(some.VENDORS)
        self.counted = GrantedTime(self.ledger, lambda: self.now)
        self.pool: tuple[str, ...] = ()
        self.workloads: dict[str, Workload] = {}
        self.count = 0
        self.granted: defaultdict[SeriesKey, float] = defaultdict(float)
        self.time: defaultdict[str, float] = defaultdict(float)

    @initialize(pool=some.pools)
    def begin(self, pool: tuple[str, ...]) -> None:
        self.pool = pool

    @rule(data=st.data(), name=st.sampled_from(some.NODES))
    def a_node_registers_or_changes(self, data: st.DataObject, name: str) -> None:
        self.ledger.observe_node(data.draw(some.nodes(name, self.pool)))
        self.counted.on_cards(name)

    @rule(name=st.sampled_from(some.NODES))
    def a_node_goes(self, name: str) -> None:
        self.ledger.forget_node(name)
        self.counted.on_cards(name)

    @rule(data=st.data(), workload=WORKLOADS)
    def a_pod_appears(self, data: st.DataObject, workload: Workload) -> None:
        self.count += 1
        facts = data.draw(some.foreign_pods(self.pool, f"pod-{self.count}"))
        self.workloads[facts.uid] = workload
        self.ledger.observe_pod(facts)
        self.counted.on_holder(facts.uid, workload)

    @precondition(lambda self: self.workloads)
    @rule(data=st.data())
    def a_pod_is_shown_again(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.workloads)))
        self.counted.on_holder(uid, self.workloads[uid])

    @precondition(lambda self: self.workloads)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.workloads)))
        del self.workloads[uid]
        self.ledger.release(uid)
        self.counted.on_holder(uid, None)

    @rule(seconds=st.floats(0.001, 10_000))
    def time_passes(self, seconds: float) -> None:
        for name in self.ledger.node_names():
            for uuid, device in self.ledger.devices(name).items():
                self.time[device.model] += seconds
                shares = {
                    uid: share_of(entry.holdings[uuid].use, device, some.VENDORS[device.vendor])
                    for uid in self.workloads
                    if (entry := self.ledger.pod(uid)) and entry.facts.node == name and uuid in entry.holdings
                }
                for uid, share in shares.items():
                    part = share / max(1.0, sum(shares.values()))
                    self.granted[SeriesKey(self.workloads[uid], device.model)] += seconds * part
        self.now += seconds

    @invariant()
    def the_counters_are_right(self) -> None:
        granted = {sample.key: sample.seconds for sample in self.counted.time.samples()}
        assert {key: seconds for key, seconds in granted.items() if seconds > 1e-6} == pytest.approx(
            {key: seconds for key, seconds in self.granted.items() if seconds > 1e-6}, rel=1e-6
        )
        for model, idle in self.counted.time.idle().items():
            together = idle + sum(seconds for key, seconds in granted.items() if key.model == model)
            assert together == pytest.approx(self.time[model], rel=1e-6, abs=1e-6)
        assert {model for model, seconds in self.time.items() if seconds} <= self.counted.time.idle().keys()


def test_granted_and_idle_seconds_add_up_to_the_time_of_the_cards() -> None:
    run_state_machine_as_test(Counted, settings=examples(0.6, stateful_step_count=STEPS))
