"""Random lives of a ledger: after every step it decides as the plain rule does, and is what a replay would build.

Two machines. `Decisions` only does what the scheduler does by itself: nothing may ever be granted twice. `Disturbed`
adds what the world does: changed and vanished nodes, pods of foreign schedulers, quotas below what is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tessera.core.fit.fit import fit_pod
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.audit import BROKEN, audit
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of, replay
from tessera.core.model import arrays
from tessera.core.model.devices import NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.requests import ContainerRequest, PodRequest, Request
from tessera.core.search import evaluation, selection
from tessera.core.search.selection import Candidates, Refused, Selected, Selector
from tests.support import strategies as some
from tests.support.builders import expire
from tests.support.oracles import select_and_check

UNKNOWN_NODE = "no-such-node"
LIVES = settings(stateful_step_count=30)
"""few, for they are long; `make properties` lives more of them: this is where the product would go wrong"""


def columns(ledger: Ledger) -> dict[str, Any]:
    """The arrays node by node and card by card, whatever their layout."""
    found = {}
    for name in ledger.node_names():
        view, row = ledger.node(name), ledger.arrays.row(name)
        if view is None:
            assert row < 0
            continue
        places = {card.device.uuid: _use_in_arrays(ledger, row, card.device.uuid) for card in view.cards}
        found[name] = float(ledger.arrays.score[row]), bool(ledger.arrays.unavailable[row]), places
    return found


def _use_in_arrays(ledger: Ledger, row: int, uuid: str) -> list[int]:
    """Empty for cards of nodes that are too wide for the arrays."""
    cards = ledger.arrays
    devices, at = cards.places([uuid])
    return [
        int(array[place, row])
        for place in devices[at == row]
        for array in (cards.used, cards.used_memory, cards.used_cores, cards.sick)
    ]


def settled(ledger: Ledger) -> dict[str, Any]:
    """The ledger's state as it is once every reservation is bound: what API objects can tell."""
    state = ledger.state()
    return state | {"pods": {uid: facts for uid, (_, facts) in state["pods"].items()}}


class Decisions(RuleBasedStateMachine):
    """The scheduler alone."""

    def __init__(self) -> None:
        super().__init__()
        # Small limits, so that short lives see the log overrun, shapes forgotten, arrays grow, nodes too wide for them
        # and single columns judged.
        self._limits = (
            mock.patch.multiple(arrays, LOG_LIMIT=12, MAX_DEVICES=6),
            mock.patch.multiple(selection, SHAPES=3),
            mock.patch.object(evaluation, "REBUILD_SHARE", 0.7),
        )
        for limit in self._limits:
            limit.start()
        self.ledger = Ledger(some.VENDORS)
        self.ledger.arrays = arrays.CardArrays(nodes=1, devices=1)
        self.selector = Selector(self.ledger)
        self.now = 0.0
        self.count = 0
        self.pool: tuple[str, ...] = ()
        self.nodes: dict[str, NodeFacts] = {}
        self.quotas: dict[tuple[str, str], QuotaFacts] = {}
        self.pods: dict[str, PodFacts] = {}
        self.nominated: dict[str, PodRequest] = {}
        self.asked: list[PodRequest] = []
        self.candidates: Candidates | None = None

    def teardown(self) -> None:
        for limit in self._limits:
            limit.stop()

    @initialize(data=st.data(), pool=some.pools)
    def start(self, data: st.DataObject, pool: tuple[str, ...]) -> None:
        self.pool = pool
        for facts in data.draw(some.clusters(pool, least=3)):
            self.nodes[facts.name] = facts
            self.ledger.observe_node(facts)
        for quota in data.draw(st.lists(some.quotas(pool), max_size=2)):
            self.quotas[quota.namespace, quota.name] = quota
            self.ledger.observe_quota(quota)

    def new_uid(self) -> str:
        self.count += 1
        return f"pod-{self.count}"

    def names(self) -> list[str]:
        return [*reversed(some.NODES), UNKNOWN_NODE]

    def decide(self, pod: PodRequest) -> Selected | Refused:
        """Ask, both ways that callers may, and compare with the plain rule."""
        if self.candidates is None:
            self.candidates = self.selector.candidates(self.names())
        return select_and_check(self.selector, pod, self.candidates)

    # -- what the scheduler does

    @rule(data=st.data())
    def place_a_new_pod(self, data: st.DataObject) -> None:
        pod = data.draw(some.pod_requests(self.pool, self.new_uid()))
        self.asked.append(pod)
        self.place(pod)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), policy=st.sampled_from(("", *some.NODE_POLICIES)), namespace=st.sampled_from(some.NAMESPACES))
    def place_a_pod_like_an_earlier_one(self, data: st.DataObject, policy: str, namespace: str) -> None:
        like = data.draw(st.sampled_from(self.asked))
        self.place(replace(like, uid=self.new_uid(), node_policy=policy or like.node_policy, namespace=namespace))

    @rule()
    def ask_for_a_vendor_that_nobody_knows(self) -> None:
        request = Request("nobody", count=1)
        answer = self.decide(
            PodRequest("stranger", "team-a", "stranger", (ContainerRequest("main", requests=(request,)),))
        )
        assert isinstance(answer, Refused)

    def place(self, pod: PodRequest) -> None:
        answer = self.decide(pod)
        if isinstance(answer, Refused):
            return
        before = self.ledger.state(), columns(self.ledger)
        self.ledger.reserve(pod, answer.placement, deadline=self.now + 10)
        self.ledger.release(pod.uid)
        assert (self.ledger.state(), columns(self.ledger)) == before, "release must restore what was before"
        self.ledger.reserve(pod, answer.placement, deadline=self.now + 10)
        self.pods[pod.uid] = facts_of(pod, answer.placement)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        entry = self.ledger.pod(uid)
        assert entry is not None
        if not entry.observed:
            self.ledger.bind(uid)
            assert entry.state is GrantState.BOUND

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def give_a_binding_up(self, data: st.DataObject) -> None:
        entry = self.ledger.pod(data.draw(st.sampled_from(sorted(self.pods))))
        assert entry is not None
        if entry.state is GrantState.BOUND and not entry.observed:
            self.ledger.unbind(entry.uid, deadline=self.now + 10)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def see_a_pod_bound(self, data: st.DataObject) -> None:
        self.ledger.observe_pod(self.pods[data.draw(st.sampled_from(sorted(self.pods)))])

    @rule(seconds=st.sampled_from((1, 5, 20)))
    def let_time_pass(self, seconds: int) -> None:
        self.now += seconds
        for uid in expire(self.ledger, self.now):
            del (self.pods if uid in self.pods else self.nominated)[uid]

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def end_a_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        assert self.ledger.release(uid)
        del self.pods[uid]

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def nominate_a_pod_over_others(self, data: st.DataObject) -> None:
        """Whatever the victims are: the claim is what fits once they have left."""
        name = data.draw(st.sampled_from(sorted({facts.node for facts in self.pods.values()})))
        on_node = sorted(uid for uid, facts in self.pods.items() if facts.node == name)
        victims = frozenset(data.draw(st.lists(st.sampled_from(on_node), min_size=1, max_size=3)))
        victims |= self.ledger.nominations.victims_on(name)
        pod = data.draw(some.pod_requests(self.pool, self.new_uid()))
        answer = self.ledger.fit_without(pod, name, victims)
        if isinstance(answer, Placement):
            before = self.ledger.state(), columns(self.ledger)
            self.ledger.nominate(facts_of(pod, answer), victims, deadline=self.now + 10)
            self.ledger.withdraw(pod.uid)
            assert (self.ledger.state(), columns(self.ledger)) == before, "withdraw must restore what was before"
            self.ledger.nominate(facts_of(pod, answer), victims, deadline=self.now + 10)
            self.nominated[pod.uid] = pod

    @precondition(lambda self: self.nominated)
    @rule(data=st.data())
    def a_nominated_pod_takes_what_it_claims(self, data: st.DataObject) -> None:
        pod = self.nominated[data.draw(st.sampled_from(sorted(self.nominated)))]
        nomination = self.ledger.nominations.get(pod.uid)
        assert nomination is not None
        name = nomination.facts.node
        view = self.ledger.node(name, nominee=pod.uid)
        rooms = self.ledger.rooms(pod.namespace, pod.vendors, nominee=pod.uid)
        answer = fit_pod(view, pod, some.VENDORS, rooms) if view is not None else None
        if isinstance(answer, Placement):
            self.ledger.reserve(pod, answer, deadline=self.now + 10)
            self.pods[pod.uid] = facts_of(pod, answer)
            del self.nominated[pod.uid]

    @precondition(lambda self: self.nominated)
    @rule(data=st.data())
    def a_nomination_ends(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.nominated)))
        assert self.ledger.withdraw(uid)
        del self.nominated[uid]

    @rule(data=st.data())
    def ask_about_other_nodes_from_now_on(self, data: st.DataObject) -> None:
        self.candidates = self.selector.candidates(data.draw(st.lists(st.sampled_from(self.names()), max_size=12)))

    # -- what always holds

    @invariant()
    def the_books_are_in_order(self) -> None:
        assert audit(self.ledger) == []
        for namespace, _ in self.quotas:
            for vendor in self.pool:
                room = self.ledger.quotas.room(namespace, some.VENDORS[vendor])
                assert min(left for left in (*room, 0) if left is not None) == 0, "a quota is exceeded"
            for room in self.ledger.rooms(namespace, self.pool).values():
                assert min(left for left in (*room, 0) if left is not None) == 0, "a quota will be exceeded"

    @invariant()
    def nothing_that_is_nominated_is_stolen(self) -> None:
        for uid, pod in self.nominated.items():
            nomination = self.ledger.nominations.get(uid)
            assert nomination is not None
            name = nomination.facts.node
            is_free = not any(self.ledger.pod(victim) for victim in self.ledger.nominations.victims_on(name))
            quota_is_free = is_free and not any(
                self.ledger.pod(victim) for each in self.ledger.nominations.all() for victim in each.victims
            )
            # With several requests the plain rule is greedy, and may miss what it found before.
            if quota_is_free and len(pod.requests) == 1:
                view = self.ledger.node(name, nominee=uid)
                rooms = self.ledger.rooms(pod.namespace, pod.vendors, nominee=uid)
                assert view is not None
                assert isinstance(fit_pod(view, pod, some.VENDORS, rooms), Placement), "the victims left for others"

    @invariant()
    def a_replay_gives_the_same_ledger(self) -> None:
        again = replay(some.VENDORS, nodes=self.nodes.values(), pods=self.pods.values(), quotas=self.quotas.values())
        for nomination in self.ledger.nominations.all():
            again.nominate(nomination.facts, nomination.victims)
        assert settled(again) == settled(self.ledger)
        assert columns(again) == columns(self.ledger)


class Disturbed(Decisions):
    """The scheduler in a world that does not ask it."""

    @rule(data=st.data())
    def a_node_changes(self, data: st.DataObject) -> None:
        facts = data.draw(some.nodes(data.draw(st.sampled_from(some.NODES)), self.pool))
        self.nodes[facts.name] = facts
        self.ledger.observe_node(facts)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def a_node_changes_a_little(self, data: st.DataObject) -> None:
        facts = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        if facts.devices:
            position = data.draw(st.integers(0, len(facts.devices) - 1))
            devices = list(facts.devices)
            devices[position] = replace(devices[position], healthy=not devices[position].healthy)
            facts = replace(facts, devices=tuple(devices))
        self.nodes[facts.name] = facts
        self.ledger.observe_node(facts)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def a_node_goes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[name]
        self.ledger.forget_node(name)

    @rule(data=st.data())
    def a_foreign_pod_appears(self, data: st.DataObject) -> None:
        facts = data.draw(some.foreign_pods(self.pool, self.new_uid()))
        self.pods[facts.uid] = facts
        self.ledger.observe_pod(facts)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_turns_out_to_be_elsewhere(self, data: st.DataObject) -> None:
        facts = data.draw(some.foreign_pods(self.pool, data.draw(st.sampled_from(sorted(self.pods)))))
        self.pods[facts.uid] = facts
        self.ledger.observe_pod(facts)

    @rule(data=st.data())
    def a_quota_changes(self, data: st.DataObject) -> None:
        facts = data.draw(some.quotas(self.pool))
        self.quotas[facts.namespace, facts.name] = facts
        self.ledger.observe_quota(facts)

    @precondition(lambda self: self.quotas)
    @rule(data=st.data())
    def a_quota_goes(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.quotas)))
        del self.quotas[key]
        self.ledger.forget_quota(*key)

    @invariant()
    def the_books_are_in_order(self) -> None:
        assert [finding for finding in audit(self.ledger) if finding.kind == BROKEN] == []

    def nothing_that_is_nominated_is_stolen(self) -> None:
        """The world may take it away."""


def test_the_scheduler_alone_never_grants_anything_twice_and_decides_as_the_plain_rule() -> None:
    run_state_machine_as_test(Decisions, settings=LIVES)


def test_whatever_the_world_does_the_ledger_stays_true_and_decides_as_the_plain_rule() -> None:
    run_state_machine_as_test(Disturbed, settings=LIVES)
