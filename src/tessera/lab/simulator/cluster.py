"""A trace's nodes as a ledger: the same cards, fit and accounting as in the scheduler, and the hosts beside them.

A card has 1000 MiB and 100 cores, so that `gpu_milli` is memory to the thousandth and cores rounded down: the memory
decides, and a whole card means the card alone. CPU and host memory are what kube-scheduler would check first; they are
kept in the ledger's arrays (`free_cpu`, `free_memory`) and enforced here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache, lru_cache
from itertools import count

import numpy as np
import numpy.typing as npt

from tessera.core.arrays import Bools, Ints
from tessera.core.devices import HAMI_CORE, Device, NodeFacts
from tessera.core.evaluation import Evaluation
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.requests import Constraint, ContainerRequest, HostRequest, PodRequest, Request, Role
from tessera.lab.simulator.traces import WHOLE, Ask, TraceNode
from tessera.vendors.base import Switches, Vendor
from tessera.vendors.registry import build_vendors

Floats = npt.NDArray[np.float64]

NVIDIA = "NVIDIA"
SLOTS = 100
"""sharers of a card: more than any trace puts on one"""


@cache
def _vendors() -> Mapping[str, Vendor]:
    return build_vendors(None, Switches())


def model_word(model: str) -> str:
    """A model as a card has it: in brackets, since constraints look for parts of names and A10 is a part of A100."""
    return f"[{model.lower()}]"


@lru_cache(maxsize=4096)
def request_of(ask: Ask) -> PodRequest:
    """What the core is asked; CPU-only pods ask for no devices."""
    requests = (Request(NVIDIA, count=ask.cards, memory=ask.milli, cores=ask.milli // 10),) if ask.cards else ()
    models = tuple(model_word(model) for model in ask.models)
    constraints = ((NVIDIA, Constraint(use_models=models)),) if models and ask.cards else ()
    return PodRequest("", "trace", "", (ContainerRequest("main", Role.APP, requests),), constraints)


def _device(node: TraceNode, index: int) -> Device:
    uuid = f"{node.name}/{index}"
    model = model_word(node.model)
    return Device(uuid, NVIDIA, index, SLOTS, WHOLE, model=model, mode=HAMI_CORE)


class Cluster:
    """Nodes, who runs on them, and which columns could take a pod."""

    def __init__(self, nodes: tuple[TraceNode, ...]) -> None:
        self.ledger = Ledger(_vendors())
        self.arrays = self.ledger.arrays
        self.nodes = nodes
        for node in nodes:
            self.arrays.set_host_free(node.name, cpu=node.cpu, memory=node.memory)
            self.ledger.observe_node(NodeFacts(node.name, tuple(_device(node, i) for i in range(node.cards))))
        self.rows: Ints = self.arrays.rows([node.name for node in nodes if node.cards])
        """columns of the nodes; those without cards are left out, as in the published node list"""
        hosts = {node.name: node for node in nodes}
        self._cpu = np.array([max(hosts[name].cpu, 1) for name in self.arrays.names])
        self._memory = np.array([max(hosts[name].memory, 1) for name in self.arrays.names])
        self.taken = 0
        """thousandths of cards"""
        self._evaluations: dict[Hashable, Evaluation] = {}
        self._uids = count()

    def fitting(self, ask: Ask, within: Bools | None = None) -> Ints:
        """Columns that take the pod, host and cards; of those in `within` where it is given."""
        arrays = self.arrays
        fits: Bools = (arrays.free_cpu >= ask.cpu) & (arrays.free_memory >= ask.memory)
        if within is not None:
            fits &= within
        fits = fits[: len(arrays.names)]
        if ask.cards:
            evaluation = self.evaluation(request_of(ask))
            fits = fits & evaluation.possible
        return np.flatnonzero(fits)

    def left_after(self, ask: Ask, rows: Ints) -> tuple[Floats, Floats]:
        """CPU and memory that would be free with the pod there, as parts of the host's own."""
        cpu: Floats = (self.arrays.free_cpu[rows] - ask.cpu) / self._cpu[rows]
        memory: Floats = (self.arrays.free_memory[rows] - ask.memory) / self._memory[rows]
        return cpu, memory

    def evaluation(self, request: PodRequest) -> Evaluation:
        """The core's memory of the request's shape, up to date."""
        known = self._evaluations.get(request.shape)
        if known is None:
            known = self._evaluations[request.shape] = Evaluation(self.ledger, request)
        known.catch_up()
        return known

    def put(self, ask: Ask, row: int, placement: Placement | None) -> str:
        """The pod runs there from now on; its uid."""
        uid = f"pod-{next(self._uids)}"
        name = self.arrays.names[row]
        if placement is not None:
            request = request_of(ask)
            named = PodRequest(uid, request.namespace, uid, request.containers, request.constraints)
            self.ledger.reserve(named, placement, deadline=0.0)
        self._charge(name, row, HostRequest(ask.cpu, ask.memory))
        self.taken += ask.demand
        return uid

    def end(self, ask: Ask, row: int, uid: str) -> None:
        """The pod has ended."""
        self.ledger.release(uid)
        self._charge(self.arrays.names[row], row, HostRequest(-ask.cpu, -ask.memory))
        self.taken -= ask.demand

    def _charge(self, name: str, row: int, host: HostRequest) -> None:
        cpu, memory = int(self.arrays.free_cpu[row]) - host.cpu, int(self.arrays.free_memory[row]) - host.memory
        self.arrays.set_host_free(name, cpu=cpu, memory=memory)
