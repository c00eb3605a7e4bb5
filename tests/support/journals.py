"""Journals: written by a ledger in the plainest way, by the stepwise scheduler and by the real one, and read back.

`RecordedCluster` makes one record of each change and each decision. `story` has everything that can happen to pods,
with names that are found again in texts; random lives of a scheduler are for properties.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tessera import __version__
from tessera.core.fit.fit import fit_pod
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.devices import NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.search.selection import Refused, Selector
from tessera.inspect.replay import Difference, JournalReplay, ReplayCounts
from tessera.scheduler.journal import Journal
from tessera.scheduler.observer import ObserverGroup, SchedulerObserver
from tessera.scheduler.settings import JournalSettings, Settings
from tessera.vendors.base import Vendor
from tessera.vendors.node_reader import node_facts
from tessera.vendors.registry import build_vendors
from tessera.wire import journal
from tessera.wire.journal import CandidateMask, Record, SnapshotEnd, decode_record, encode_record
from tessera.wire.journal_values import PodAsk, PodRef, grants_of
from tests.support import strategies as some
from tests.support.builders import NOW, NodeBuilder, PodBuilder, gpu_pod, node, vendors
from tests.support.stepwise_scheduler import World, serving_downward_api


class RecordedCluster:
    """A scheduler's ledger and its journal. Every record is one second younger than the one before."""

    def __init__(self, rules: Mapping[str, Vendor] | None = None, *, identity: str = "one", begin: float = NOW) -> None:
        self.ledger = Ledger(rules or vendors())
        self.selector = Selector(self.ledger)
        self.records: list[Record] = []
        self._identity = identity
        self._begin = begin
        self._sequence = 0
        self._forecasts: dict[int, int] = {}
        self._state: dict[Hashable, Record] = {}
        """the newest record of each node, pod, quota, host and forecast"""
        self.restart()
        self.ledger.listener = self

    @property
    def now(self) -> float:
        return self._begin + self._sequence

    def restart(self) -> None:
        """Another file begins, with the state as it is."""
        start = {"format": journal.FORMAT, "version": __version__, "identity": self._identity, "device_sections": None}
        self._add(
            journal.Start, own=False, enable_ascend=True, enable_iluvatar=True, node_policy="binpack",
            device_policy="spread", scheduler_name="hami-scheduler", **start,
        )  # fmt: skip
        self.records += self._state.values()
        self._add(journal.SnapshotEnd, own=False)

    def text(self) -> bytes:
        return b"".join(map(encode_record, self.records))

    # -- what happens

    def add(self, *nodes: NodeBuilder) -> RecordedCluster:
        for one in nodes:
            self.ledger.observe_node(node_facts(one.api(), vendors()))
        return self

    def decide(self, pod: PodBuilder | PodRequest, names: Iterable[str] | None = None) -> Placement | None:
        """Records a decision, and reserves what was chosen."""
        request = pod if isinstance(pod, PodRequest) else pod.request()
        given = list(self.ledger.node_names() if names is None else names)
        answer = self.selector.select(request, given)
        known = self._decision(request, self._mask(given))
        if isinstance(answer, Refused):
            self._add(journal.Refused, reasons=dict(answer.reason_counts), **known)
            return None
        placement = answer.placement
        self._add_placed(placement, known)
        self.ledger.reserve(request, placement, deadline=0.0)
        return placement

    def bind_again(self, pod: PodBuilder, node: str) -> Placement | Misfit:
        """As after a restart between filter and bind: on the node that the bind names."""
        request, view = pod.request(), self.ledger.node(node)
        assert view is not None
        answer = fit_pod(view, request, self.ledger.rules, self.ledger.rooms(request.namespace, request.vendors))
        known = self._decision(request, self._mask([node])) | {"at_bind": True}
        if isinstance(answer, Misfit):
            self._add(journal.Refused, reasons={answer.text: 1}, **known)
        else:
            self._add_placed(answer, known)
            self.ledger.reserve(request, answer, deadline=0.0)
        return answer

    def note(self, kind: type[Any], **fields: Any) -> None:
        """Any other record."""
        self._add(kind, **fields)

    # -- told by the ledger

    def on_node(self, name: str, facts: NodeFacts | None) -> None:
        self._put(journal.NodeRecord, name, *(() if facts is None else (facts,)))

    def on_pod(self, facts: PodFacts, state: GrantState | None, *, observed: bool) -> None:
        self._put(journal.PodRecord, facts.uid, *(() if state is None else (facts, state, observed)))

    def on_nomination(self, facts: PodFacts, victims: frozenset[str] | None) -> None:
        self._put(journal.NominationRecord, facts.uid, *(() if victims is None else (facts, victims)))

    def on_quota(self, namespace: str, name: str, facts: QuotaFacts | None) -> None:
        self._put(journal.QuotaRecord, (namespace, name), *(() if facts is None else (facts,)))

    def on_host(self, name: str, free: HostRequest | None) -> None:
        self._put(journal.HostRecord, name, *(() if free is None else (free,)))

    # -- inside

    def _decision(self, request: PodRequest, mask: CandidateMask) -> dict[str, Any]:
        forecast = None
        if request.forecast is not None:
            forecast = self._forecasts.get(id(request.forecast))
            if forecast is None:
                forecast = self._forecasts[id(request.forecast)] = len(self._forecasts)
                self._put(journal.ForecastRecord, forecast, request.forecast)
        return {
            "pod": PodRef(request.namespace, request.name, request.uid),
            "ask": PodAsk.of(request, forecast),
            "candidates": mask,
            "ledger_version": self._sequence,
            "microseconds": 42,
        }

    def _mask(self, names: list[str]) -> CandidateMask:
        found = self.selector.candidates(names)
        nodes = [place for place, name in enumerate(found.order.names) if name]
        bits = np.packbits(found.named[nodes]).tobytes()
        return CandidateMask(count=len(found), mask=bits, others=len(found.unregistered))

    def _add_placed(self, placement: Placement, known: dict[str, Any]) -> None:
        self._add(
            journal.Placed, node=placement.node, grants=grants_of(placement.grants), score=placement.score, **known
        )

    def _put(self, kind: type[Any], name: Hashable, *value: object) -> None:
        """What a part of the state is from now on; without a value it is gone."""
        self._sequence += 1
        self.records.append(kind.of(name, *value, time=self.now, sequence=self._sequence))
        if value:
            self._state[kind, name] = self.records[-1]
        else:
            self._state.pop((kind, name), None)

    def _add(self, kind: type[Any], *, own: bool = True, **fields: Any) -> None:
        """A record with a number of its own, or part of a snapshot."""
        self._sequence += own
        self.records.append(kind(time=self.now, sequence=self._sequence, **fields))


def named(mask: CandidateMask | None, order: Sequence[str]) -> list[str]:
    """The nodes among the candidates of a decision, given those that were registered then."""
    assert mask is not None
    if mask.mask is None:
        return list(order)
    return [name for name, bit in zip(order, np.unpackbits(np.frombuffer(mask.mask, np.uint8)), strict=False) if bit]


def records_of(journal: Journal, since: int | None = None, *, snapshot: bool = True) -> list[Record]:
    """All that a reading gives, in one step of the event loop, as it arrives on the other side."""
    return _completed(_collected(journal.read(since, snapshot=snapshot)))


def decide_again(records: Iterable[Record]) -> tuple[ReplayCounts, Difference | None]:
    """Makes all decisions again, up to the first that comes out differently."""
    replay = JournalReplay()
    found = (replay.check(record) for record in records)
    difference = next((each for each in found if each is not None), None)
    return replay.counts, difference


def replayed(records: Iterable[Record]) -> JournalReplay:
    """Makes all decisions again, and fails at the first that comes out differently."""
    replay = JournalReplay()
    for record in records:
        difference = replay.check(record)
        assert difference is None, difference
    return replay


def assert_same_ledger(replay: JournalReplay, ledger: Ledger) -> None:
    """The ledgers hold the same, and decide alike."""
    assert replay.ledger.state() == ledger.state()
    mine, other = ledger.arrays, replay.ledger.arrays
    for name in filter(None, mine.names):
        here, there = mine.row(name), other.row(name)
        assert (mine.free_cpu[here], mine.free_memory[here]) == (other.free_cpu[there], other.free_memory[there])
        assert mine.score[here] == other.score[there]


async def _collected(records: AsyncIterator[Record]) -> list[Record]:
    return [decode_record(encode_record(record)) async for record in records]


def _completed(work: Coroutine[Any, Any, list[Record]]) -> list[Record]:
    """Runs what never waits for anything but its turn."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            found: list[Record] = end.value
            return found


MEMORY = 1 << 20


class JournalledWorld(World):
    """Every process has a journal of its own, of `memory` bytes. Its settings are the usual ones with `changed`."""

    def __init__(
        self, *nodes: NodeBuilder, memory: int = MEMORY, log: SchedulerObserver | None = None, **changed: object
    ) -> None:
        self._changed = {**changed, "journal": JournalSettings(memory_bytes=memory)}
        self._log = log or SchedulerObserver()
        self._processes = 0
        super().__init__(*nodes)

    def start(self) -> None:
        self._processes += 1
        self.settings = replace(self.settings, **self._changed)  # type: ignore[arg-type]
        self.journal = Journal(self.settings, now=self.now, identity=f"process-{self._processes}")
        super().start()
        self.journal.attach(self.ledger)

    def observer(self) -> SchedulerObserver:
        return ObserverGroup(self.journal, self._log, self.reports)

    def reload(self, settings: Settings) -> None:
        """Another device configuration, as the service takes it; everything is read again."""
        vendors = self.engine.vendors
        vendors.clear()
        vendors.update(build_vendors(settings.device_sections, settings.switches))
        self.journal.restart(settings)
        self.engine.forget_vendors()
        for name, found in self.api.nodes.items():
            self.nodes.put(name, found)
        for key, pod in self.api.pods.items():
            self.pods.put(key, pod)


def machine(name: str, cards: int = 1, **card: Any) -> NodeBuilder:
    return serving_downward_api(node(name).gpus(cards, **card))


def kinds(records: list[Record]) -> list[str]:
    return [type(record).__name__ for record in records]


def happened(world: JournalledWorld) -> list[Record]:
    """What follows the state at the beginning."""
    records = records_of(world.journal)
    end = next(place for place, record in enumerate(records) if isinstance(record, SnapshotEnd))
    return records[end + 1 :]


def only(world: JournalledWorld, kind: type[Any]) -> list[Any]:
    return [record for record in happened(world) if isinstance(record, kind)]


HOSTILE = "bad-\x1b[31mred\x07"
"""a name that no apiserver lets pass"""


def trainer(number: int, *, memory: int = 60_000) -> PodBuilder:
    return gpu_pod(mem=memory).called(f"train-{number}", namespace="team-a", uid=f"1111-{number}")


def ref(number: int) -> PodRef:
    return PodRef("team-a", f"train-{number}", f"1111-{number}")


def recorded_story(cluster: RecordedCluster | None = None) -> RecordedCluster:
    """Two pods are placed, the third waits for the end of the first; a fourth is denied."""
    found = (cluster or RecordedCluster()).add(node("alpha-host").gpus(2))
    for number in (0, 1):
        placement = found.decide(trainer(number))
        assert placement is not None
        found.ledger.bind(f"1111-{number}")
        found.note(journal.Bind, pod=ref(number), node=placement.node)
    found.decide(trainer(2))
    found.note(journal.Denied, namespace="team-a", name=HOSTILE, message="no: \x1b]0;title\x07 train-2")
    found.ledger.release("1111-0")
    found.note(journal.Released, pod=ref(0), node="alpha-host", why="ended")
    found.note(journal.Woken, pod=ref(2))
    found.decide(trainer(2))
    found.note(journal.Bind, pod=ref(2), node="alpha-host", error="the pod changed")
    found.ledger.release("1111-1")
    found.note(journal.Evicted, pod=ref(1), node="alpha-host", message="drained")
    found.note(journal.Gang, namespace="team-a", name=HOSTILE, state="waiting", text="3 of 8 members exist")
    return found


STEPS = 12
NAMES = [*reversed(some.NODES), "no-such-node"]


@st.composite
def lives(draw: st.DrawFn) -> RecordedCluster:
    """What a scheduler sees and decides, with whatever the world does in between."""
    pool = draw(some.pools)
    found = RecordedCluster(some.VENDORS)
    ledger = found.ledger
    for facts in draw(some.clusters(pool, least=3)):
        ledger.observe_node(facts)
    pods: dict[str, PodFacts] = {}
    for step in range(STEPS):
        match draw(st.sampled_from(("place", "place", "place", "node", "gone", "pod", "end", "quota", "bind", "file"))):
            case "place":
                pod = draw(some.pod_requests(pool, f"pod-{step}"))
                placement = found.decide(pod, draw(st.lists(st.sampled_from(NAMES), max_size=7)))
                if placement is not None:
                    pods[pod.uid] = facts_of(pod, placement)
            case "node":
                ledger.observe_node(draw(some.nodes(draw(st.sampled_from(some.NODES)), pool)))
            case "gone":
                ledger.forget_node(draw(st.sampled_from(some.NODES)))
            case "pod":
                foreign = draw(some.foreign_pods(pool, f"pod-{step}"))
                pods[foreign.uid] = foreign
                ledger.observe_pod(foreign)
            case "quota":
                ledger.observe_quota(draw(some.quotas(pool)))
            case "end" if pods:
                ended = pods[draw(st.sampled_from(sorted(pods)))]
                ledger.release(ended.uid)
                found.note(journal.Released, pod=_ref(ended), node=ended.node, why="ended")
            case "bind" if pods:
                bound = pods[draw(st.sampled_from(sorted(pods)))]
                holder = ledger.pod(bound.uid)
                if holder is not None and not holder.observed:
                    ledger.bind(bound.uid)
                found.note(journal.Bind, pod=_ref(bound), node=bound.node)
            case "file":
                found.restart()
    return found


def _ref(pod: PodFacts) -> PodRef:
    return PodRef(pod.namespace, pod.name, pod.uid)


def written(records: list[Record]) -> list[Record]:
    return [decode_record(encode_record(record)) for record in records]
