"""A ledger that writes a journal, in the plainest way: each change and each decision is one record in a list."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from tessera import __version__
from tessera.core.fit.fit import fit_pod
from tessera.core.fit.quota import QuotaFacts
from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.misfits import Misfit
from tessera.core.model.requests import HostRequest, PodRequest
from tessera.core.search.selection import Refused, Selector
from tessera.vendors.base import Vendor
from tessera.vendors.node_reader import node_facts
from tessera.wire import journal
from tessera.wire.journal import CandidateMask, Record, encode_record
from tessera.wire.journal_values import PodAsk, PodRef, grants_of
from tests.support.builders import NOW, NodeBuilder, PodBuilder, vendors


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
