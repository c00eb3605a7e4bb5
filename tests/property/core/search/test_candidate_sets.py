"""A decision depends on the ledger, the request and the set of candidates: no cache can ever be seen.

The lists of names come as kube-scheduler sends them: in any order, with repetitions and unknown nodes. All names are
equally long, so that different sets often have texts of the same length. The oracle gets the same list.
"""

from __future__ import annotations

import json
from unittest import mock

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tessera.core.model import arrays
from tessera.core.model.requests import PodRequest
from tessera.core.search import selection
from tessera.core.search.selection import Refused, Selected, Selector
from tessera.scheduler.requests import candidate_lists
from tessera.scheduler.requests.candidate_lists import CandidateList, CandidateLists
from tests.support.builders import NodeBuilder, PodBuilder, cluster, gpu_pod, node
from tests.support.oracles import check_decision

REGISTERED = tuple(f"n{i}" for i in range(6))
NAMES = (*REGISTERED, "x0", "x1")
"""the last ones are never registered"""
SIZES = {"small": 2000, "large": 8000}
"""MiB per card"""

lists = st.lists(st.sampled_from(NAMES), max_size=9) | st.permutations(REGISTERED).flatmap(
    lambda names: st.sampled_from((4, 5, 6)).map(lambda count: names[:count])
)


def cards(name: str, size: str) -> NodeBuilder:
    return node(name).gpus(2, memory=SIZES[size], slots=3)


class CandidateSets(RuleBasedStateMachine):
    """One ledger and one selector, asked about changing sets of nodes while the ledger changes."""

    def __init__(self) -> None:
        super().__init__()
        # Small limits, so that short runs see the log overrun, shapes and lists forgotten, and lists searched in vain.
        self._limits = (
            mock.patch.multiple(arrays, LOG_LIMIT=8),
            mock.patch.multiple(selection, SHAPES=3, PROBES=2),
            mock.patch.multiple(candidate_lists, REMEMBERED=2),
        )
        for limit in self._limits:
            limit.start()
        self.world = cluster(*(cards(name, "large") for name in REGISTERED))
        self.lists = CandidateLists(self.world.selector)
        self.sent: list[list[str]] = []
        self.running: list[str] = []

    def teardown(self) -> None:
        for limit in self._limits:
            limit.stop()

    def decide(self, pod: PodRequest, names: list[str]) -> Selected | Refused:
        candidates = CandidateList(msgspec.Raw(json.dumps(names).encode()), self.lists)
        answer = self.world.selector.select(pod, candidates)
        assert set(candidates.resolve().names) == set(names)
        check_decision(answer, self.world.ledger, pod, names)
        fresh = Selector(self.world.ledger).select(pod, names)
        if isinstance(answer, Selected):
            assert isinstance(fresh, Selected)
            assert (answer.fits, answer.placement) == (fresh.fits, fresh.placement)
            assert answer.best_decided(3) == fresh.best_decided(3)
        else:
            assert isinstance(fresh, Refused)
            assert answer.misfits == fresh.misfits
        return answer

    def ask(self, one: PodBuilder, names: list[str]) -> None:
        self.sent.append(names)
        request = one.called(f"p{len(self.sent)}").request()
        answer = self.decide(request, names)
        if isinstance(answer, Selected):
            self.world.ledger.reserve(request, answer.placement, deadline=1)
            self.running.append(request.uid)

    pods = st.builds(
        lambda memory, gpu, policy: gpu_pod(mem=memory, gpu=gpu).policy(node=policy),
        st.sampled_from((100, 3000, 9000)),
        st.sampled_from((1, 2)),
        st.sampled_from(("binpack", "spread")),
    )

    @rule(one=pods, names=lists, times=st.sampled_from((1, 3)))
    def place_among(self, one: PodBuilder, names: list[str], times: int) -> None:
        for _ in range(times):
            self.ask(one, names)

    @precondition(lambda self: self.sent)
    @rule(one=pods, data=st.data())
    def place_among_earlier_candidates_in_another_order(self, one: PodBuilder, data: st.DataObject) -> None:
        names = data.draw(st.sampled_from(self.sent))
        self.ask(one, data.draw(st.permutations(names)))

    @precondition(lambda self: self.sent)
    @rule(one=pods, data=st.data(), gone=st.sampled_from(NAMES), came=st.sampled_from(NAMES))
    def place_where_one_candidate_is_another(self, one: PodBuilder, data: st.DataObject, gone: str, came: str) -> None:
        names = data.draw(st.sampled_from(self.sent))
        self.ask(one, [came if name == gone else name for name in names])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_a_pod(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(self.running))
        self.running.remove(uid)
        self.world.ledger.release(uid)

    @rule(name=st.sampled_from(REGISTERED), size=st.sampled_from(sorted(SIZES)))
    def register_a_node(self, name: str, size: str) -> None:
        self.world.add(cards(name, size))

    @rule(name=st.sampled_from(REGISTERED))
    def remove_a_node(self, name: str) -> None:
        self.world.ledger.forget_node(name)


def test_decisions_follow_from_the_ledger_the_request_and_the_set_of_candidates() -> None:
    run_state_machine_as_test(CandidateSets, settings=settings(stateful_step_count=20))
