"""What nodes have free beside their cards: CPU and memory, counted as kube-scheduler counts them.

Told to the ledger's arrays for policies that look ahead; nothing is ever refused for it, since kube-scheduler has
checked it before. Kept only where the default policy looks ahead. An amount that cannot be read counts as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tessera.core.arrays import CardArrays
from tessera.core.requests import HostAsk
from tessera.vendors.reading_pods import ENDED, SIDECAR_POLICY
from tessera.wire.objects import Container, Node, Pod
from tessera.wire.quantity import NotAQuantity, read

MIB = 2**20
CPU, MEMORY = "cpu", "memory"


def host_ask(pod: Pod) -> HostAsk:
    """What a pod asks of its node: its app containers and sidecars together, or its largest init container."""
    init = [_ask(each) for each in pod.init_containers if each.restart_policy != SIDECAR_POLICY]
    sidecars = (each for each in pod.init_containers if each.restart_policy == SIDECAR_POLICY)
    running = _sum(_ask(each) for each in (*pod.app_containers, *sidecars))
    return HostAsk(max(running.cpu, *(i.cpu for i in init), 0), max(running.memory, *(i.memory for i in init), 0))


def _ask(container: Container) -> HostAsk:
    asked = {**(container.resources.limits or {}), **(container.resources.requests or {})}
    return HostAsk(_amount(asked, CPU, scale=1_000), _amount(asked, MEMORY, per=MIB))


def _sum(asks: Iterable[HostAsk]) -> HostAsk:
    cpu = memory = 0
    for ask in asks:
        cpu, memory = cpu + ask.cpu, memory + ask.memory
    return HostAsk(cpu, memory)


def _amount(resources: Mapping[str, str | int | float], name: str, *, scale: int = 1, per: int = 1) -> int:
    found = read(resources[name]) if name in resources else None
    return 0 if found is None or isinstance(found, NotAQuantity) else max(int(found.value * scale) // per, 0)


class Hosts:
    """Allocatable of every node, less what its pods ask for."""

    def __init__(self, arrays: CardArrays) -> None:
        self._arrays = arrays
        self._total: dict[str, HostAsk] = {}
        self._asked: dict[str, HostAsk] = {}
        """by node"""
        self._pods: dict[str, tuple[str, HostAsk]] = {}

    def put_node(self, node: Node) -> None:
        allocatable = node.allocatable
        total = HostAsk(_amount(allocatable, CPU, scale=1_000), _amount(allocatable, MEMORY, per=MIB))
        if total != HostAsk():
            self._total[node.name] = total
            self._tell(node.name)

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

    def _charge(self, name: str, ask: HostAsk, *, sign: int) -> None:
        asked = self._asked.get(name, HostAsk())
        asked = HostAsk(asked.cpu + sign * ask.cpu, asked.memory + sign * ask.memory)
        if asked == HostAsk():
            self._asked.pop(name, None)
        else:
            self._asked[name] = asked
        self._tell(name)

    def _tell(self, name: str) -> None:
        total = self._total.get(name)
        if total is not None:
            asked = self._asked.get(name, HostAsk())
            free = max(total.cpu - asked.cpu, 0), max(total.memory - asked.memory, 0)
            self._arrays.tell_host(name, cpu=free[0], memory=free[1])
