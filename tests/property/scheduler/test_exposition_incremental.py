"""After any changes of a ledger, the incrementally updated text equals a text written from scratch."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from prometheus_client.parser import text_string_to_metric_families

from tessera.core.ledger.ledger import Ledger
from tessera.core.model import arrays
from tessera.scheduler.metrics.exposition import Exposition
from tests.support import strategies as some
from tests.support.strategies import examples

STEPS = 30


def drive(coroutine: Coroutine[Any, None, bytes]) -> bytes:
    """Without a loop: all that is awaited are turns."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return bytes(stop.value)


class Scraped(RuleBasedStateMachine):
    """A ledger in a world that does as it likes, scraped now and then."""

    def __init__(self) -> None:
        super().__init__()
        # A log so short that scrapes fall behind it.
        self._limit = mock.patch.multiple(arrays, LOG_LIMIT=10)
        self._limit.start()
        self.ledger = Ledger(some.VENDORS)
        self.ledger.arrays = arrays.CardArrays(nodes=1, devices=1)
        self.exposition = Exposition(self.ledger, legacy=True)
        self.pool: tuple[str, ...] = ()
        self.uids: set[str] = set()
        self.count = 0

    def teardown(self) -> None:
        self._limit.stop()

    @initialize(pool=some.pools)
    def begin(self, pool: tuple[str, ...]) -> None:
        self.pool = pool

    @rule(data=st.data(), name=st.sampled_from(some.NODES))
    def a_node_registers_or_changes(self, data: st.DataObject, name: str) -> None:
        self.ledger.observe_node(data.draw(some.nodes(name, self.pool)))

    @rule(name=st.sampled_from(some.NODES))
    def a_node_goes(self, name: str) -> None:
        self.ledger.forget_node(name)

    @rule(data=st.data())
    def a_pod_appears(self, data: st.DataObject) -> None:
        self.count += 1
        facts = data.draw(some.foreign_pods(self.pool, f"pod-{self.count}"))
        self.uids.add(facts.uid)
        self.ledger.observe_pod(facts)

    @precondition(lambda self: self.uids)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.uids)))
        self.uids.discard(uid)
        self.ledger.release(uid)

    @rule(data=st.data())
    def a_quota_changes(self, data: st.DataObject) -> None:
        self.ledger.observe_quota(data.draw(some.quotas(self.pool)))

    @rule()
    def scrape(self) -> None:
        text = drive(self.exposition.render())
        assert text == drive(Exposition(self.ledger, legacy=True).render())
        seen = [
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        ]
        assert len(seen) == len(set(seen))
        of_nodes = {dict(labels)["node"] for name, labels in seen if name == "hami_gpu_shared_count"}
        cards = {name for name in self.ledger.node_names() if (view := self.ledger.node(name)) and view.cards}
        assert of_nodes == cards


def test_an_updated_text_equals_one_written_from_scratch() -> None:
    run_state_machine_as_test(Scraped, settings=examples(0.6, stateful_step_count=STEPS))
