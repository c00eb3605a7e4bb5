"""Free CPU and memory of the nodes, counted as kube-scheduler counts them.

The ledger's arrays need them for policies that look ahead. Nothing is ever refused for them, since kube-scheduler has
checked them before. Kept only if the default policy looks ahead. An amount that cannot be read counts as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.requests import HostRequest
from tessera.vendors.pod_reader import ENDED, SIDECAR_POLICY
from tessera.wire.objects import Container, Node, Pod
from tessera.wire.quantity import NotAQuantity, read

MIB = 2**20
CPU, MEMORY = "cpu", "memory"
TEXTS = 1_024
"""amounts remembered: pods ask for few different ones, and reading one takes longer than all the rest"""
NOTHING: Mapping[str, str | int | float] = MappingProxyType({})


def host_ask(pod: Pod) -> HostRequest:
    """What a pod asks of its node: its app containers and sidecars together, or its largest init container."""
    cpu = memory = 0
    for container in pod.app_containers:
        own_cpu, own_memory = _ask(container)
        cpu, memory = cpu + own_cpu, memory + own_memory
    most_cpu = most_memory = 0
    for container in pod.init_containers:
        own_cpu, own_memory = _ask(container)
        if container.restart_policy == SIDECAR_POLICY:
            cpu, memory = cpu + own_cpu, memory + own_memory
        else:
            most_cpu, most_memory = max(most_cpu, own_cpu), max(most_memory, own_memory)
    return HostRequest(max(cpu, most_cpu), max(memory, most_memory))


def _ask(container: Container) -> tuple[int, int]:
    """Thousandths of a core, and MiB."""
    requests, limits = container.resources.requests or NOTHING, container.resources.limits or NOTHING
    return _cpu(requests.get(CPU, limits.get(CPU))), _memory(requests.get(MEMORY, limits.get(MEMORY)))


@lru_cache(maxsize=TEXTS, typed=True)
def _cpu(text: str | int | float | None) -> int:
    return _amount(text, scale=1_000)


@lru_cache(maxsize=TEXTS, typed=True)
def _memory(text: str | int | float | None) -> int:
    return _amount(text, per=MIB)


def _amount(text: str | int | float | None, *, scale: int = 1, per: int = 1) -> int:
    found = None if text is None else read(text)
    return 0 if found is None or isinstance(found, NotAQuantity) else max(int(found.value * scale) // per, 0)


class HostResources:
    """Allocatable of every node, less what its pods ask for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._total: dict[str, HostRequest] = {}
        self._asked: dict[str, HostRequest] = {}
        """by node"""
        self._pods: dict[str, tuple[str, HostRequest]] = {}

    def put_node(self, node: Node) -> None:
        allocatable = node.allocatable
        total = HostRequest(_cpu(allocatable.get(CPU)), _memory(allocatable.get(MEMORY)))
        if total != HostRequest():
            self._total[node.name] = total
            self._tell(node.name)

    def drop_node(self, name: str) -> None:
        """Its pods count until they are gone themselves."""
        self._total.pop(name, None)
        self._ledger.forget_host(name)

    def put_pod(self, pod: Pod) -> None:
        """A pod as the API shows it: it counts from its binding to its end."""
        runs = pod.spec.node_name and pod.status.phase not in ENDED
        now = (pod.spec.node_name, host_ask(pod)) if runs else None
        if now != self._pods.get(pod.metadata.uid):
            self.drop_pod(pod.metadata.uid)
            if now is not None:
                self._pods[pod.metadata.uid] = now
                self._charge(*now, sign=1)

    def drop_pod(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        if known is not None:
            self._charge(*known, sign=-1)

    def _charge(self, name: str, ask: HostRequest, *, sign: int) -> None:
        asked = self._asked.get(name, HostRequest())
        asked = HostRequest(asked.cpu + sign * ask.cpu, asked.memory + sign * ask.memory)
        if asked == HostRequest():
            self._asked.pop(name, None)
        else:
            self._asked[name] = asked
        self._tell(name)

    def _tell(self, name: str) -> None:
        total = self._total.get(name)
        if total is not None:
            asked = self._asked.get(name, HostRequest())
            free = HostRequest(max(total.cpu - asked.cpu, 0), max(total.memory - asked.memory, 0))
            self._ledger.observe_host(name, free)
