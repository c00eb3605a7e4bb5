"""The nodes of a trace as a ledger, with the scheduler's own cards, fit rule and accounting, and their hosts.

A card has 1000 MiB and 100 cores, so that `gpu_milli` is exact in memory and rounded down in cores: memory decides, and
a whole card means exclusive use. CPU and host memory, which kube-scheduler would check first, are kept in the ledger's
arrays (`free_cpu`, `free_memory`) and enforced here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache, lru_cache
from itertools import count

import numpy as np
import numpy.typing as npt

from tessera.core.ledger.holders import GrantState
from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger, facts_of
from tessera.core.model.arrays import Bools, Ints
from tessera.core.model.devices import HAMI_CORE, MIG, Device, MigPlacement, MigProfile, NodeFacts
from tessera.core.model.grants import Placement
from tessera.core.model.requests import Constraint, ContainerRequest, HostRequest, PodRequest, Request, Role
from tessera.core.search.evaluation import Evaluation
from tessera.vendors.base import Switches, Vendor
from tessera.vendors.registry import build_vendors
from tessera_lab.simulator.traces import WHOLE, TraceNode, TraceRequest, model_word

Floats = npt.NDArray[np.float64]

NVIDIA = "NVIDIA"
SLOTS = 100
"""pods per card: more than any trace puts on one"""
MIG_PROFILES = tuple(
    MigProfile(name, memory, cores, slices, tuple(MigPlacement(start, size) for start in starts))
    for name, memory, cores, slices, size, starts in (
        ("1g", 125, 14, 1, 1, range(7)),
        ("2g", 250, 28, 2, 2, (0, 2, 4)),
        ("3g", 500, 42, 3, 4, (0, 4)),
        ("7g", WHOLE, 100, 7, 8, (0,)),
    )
)
"""those of an A100, in thousandths of its memory"""


@cache
def _vendors() -> Mapping[str, Vendor]:
    return build_vendors(None, Switches())


@lru_cache(maxsize=4096)
def make_request(ask: TraceRequest) -> PodRequest:
    """The request for the core; CPU-only pods request no devices."""
    requests = (Request(NVIDIA, count=ask.cards, memory=ask.milli, cores=ask.card_cores),) if ask.cards else ()
    constraints = ((NVIDIA, Constraint(use_models=ask.model_words)),) if ask.models and ask.cards else ()
    return PodRequest("", "trace", "", (ContainerRequest("main", Role.APP, requests),), constraints)


def _device(node: TraceNode, index: int) -> Device:
    uuid = f"{node.name}/{index}"
    model = model_word(node.model)
    if node.mig:
        return Device(uuid, NVIDIA, index, SLOTS, WHOLE, model=model, mode=MIG, mig_profiles=MIG_PROFILES)
    return Device(uuid, NVIDIA, index, SLOTS, WHOLE, model=model, mode=HAMI_CORE)


class SimulatedCluster:
    """Nodes, the pods on them, and the columns that fit a pod."""

    def __init__(self, nodes: tuple[TraceNode, ...]) -> None:
        self.ledger = Ledger(_vendors())
        self.arrays = self.ledger.arrays
        self.nodes = nodes
        for node in nodes:
            self.arrays.set_host_free(node.name, cpu=node.cpu, memory=node.memory)
            self.ledger.observe_node(NodeFacts(node.name, tuple(_device(node, i) for i in range(node.cards))))
        self.rows: Ints = self.arrays.rows([node.name for node in nodes if node.cards])
        """columns of the nodes with cards, as in the published node list"""
        hosts = {node.name: node for node in nodes}
        self._cpu = np.array([max(hosts[name].cpu, 1) for name in self.arrays.names])
        self._memory = np.array([max(hosts[name].memory, 1) for name in self.arrays.names])
        self.taken = 0
        """thousandths of cards"""
        self._evaluations: dict[Hashable, Evaluation] = {}
        self._uids = count()

    def fitting(self, ask: TraceRequest) -> Ints:
        """Columns where the pod fits, host and cards."""
        arrays = self.arrays
        fits: Bools = (arrays.free_cpu >= ask.cpu) & (arrays.free_memory >= ask.memory)
        fits = fits[: len(arrays.names)]
        if ask.cards:
            evaluation = self.evaluation(make_request(ask))
            fits = fits & evaluation.possible
            # The arrays only rule out nodes with cards in MIG mode; the plain rule decides.
            for row in np.flatnonzero(fits & arrays.odd[: len(fits)]).tolist():
                fits[row] = isinstance(evaluation.placement(row), Placement)
        return np.flatnonzero(fits)

    def left_after(self, ask: TraceRequest, rows: Ints) -> tuple[Floats, Floats]:
        """CPU and memory that would be left with the pod there, as shares of the host's own."""
        cpu: Floats = (self.arrays.free_cpu[rows] - ask.cpu) / self._cpu[rows]
        memory: Floats = (self.arrays.free_memory[rows] - ask.memory) / self._memory[rows]
        return cpu, memory

    def evaluation(self, request: PodRequest) -> Evaluation:
        """The core's cached evaluation of the request's shape, up to date."""
        known = self._evaluations.get(request.shape)
        if known is None:
            known = self._evaluations[request.shape] = Evaluation(self.ledger, request)
        known.catch_up()
        return known

    def put(self, ask: TraceRequest, row: int, placement: Placement | None) -> str:
        """Adds the pod; returns its uid."""
        uid = f"pod-{next(self._uids)}"
        name = self.arrays.names[row]
        if placement is not None:
            request = make_request(ask)
            named = PodRequest(uid, request.namespace, uid, request.containers, request.constraints)
            self.ledger.put_pod(facts_of(named, placement), GrantState.BOUND, observed=True)
        self._charge(name, row, HostRequest(ask.cpu, ask.memory))
        self.taken += ask.demand
        return uid

    def end(self, ask: TraceRequest, row: int, uid: str) -> None:
        """Removes the pod."""
        self.ledger.release(uid)
        self._charge(self.arrays.names[row], row, HostRequest(-ask.cpu, -ask.memory))
        self.taken -= ask.demand

    def move(self, target: PodFacts, host: HostRequest, source: str) -> None:
        """A pod with cards goes from one node to another one."""
        self.ledger.put_pod(target, GrantState.BOUND, observed=True)
        self._charge(source, self.arrays.row(source), HostRequest(-host.cpu, -host.memory))
        self._charge(target.node, self.arrays.row(target.node), host)

    def _charge(self, name: str, row: int, host: HostRequest) -> None:
        cpu, memory = int(self.arrays.free_cpu[row]) - host.cpu, int(self.arrays.free_memory[row]) - host.memory
        self.arrays.set_host_free(name, cpu=cpu, memory=memory)
