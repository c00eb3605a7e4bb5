"""Clusters in which pods make way for others: what ran, what is evicted, and what is nominated meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tessera.scheduler.features.gangs.gang import Gang
from tessera.scheduler.observer import EvictedEvent, PreemptionEvent, SchedulerObserver
from tessera.scheduler.queue.unschedulable_pods import UnschedulablePod
from tessera.wire.objects import (
    DisruptionBudgetSpec,
    DisruptionBudgetStatus,
    LabelSelector,
    Metadata,
    PodDisruptionBudget,
)
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod
from tests.support.stepwise_scheduler import (
    World,
    assert_cycles_match,
    gangs_of,
    pod_preemptors_of,
    preempt_for,
    serving_downward_api,
    uid,
    using_downward_api,
)

CARD = 81920
"""MiB of a card"""
TIMEOUT = 300.0
"""seconds for which a nomination holds beyond the victims' grace"""
GRACE = 30.0


class Preemptions(SchedulerObserver):
    """What the preemptor reported."""

    def __init__(self) -> None:
        self.evicted: list[tuple[str, str]] = []
        self.texts: list[str] = []

    def on_evicted(self, event: EvictedEvent) -> None:
        self.evicted.append((event.victim.name, event.text))

    def on_preemption(self, event: PreemptionEvent) -> None:
        self.texts.append(event.text)


class PreemptionCluster(World):
    """A world whose lists are complete, and in which pods run."""

    def __init__(self, *nodes: NodeBuilder) -> None:
        super().__init__(*(serving_downward_api(one) for one in nodes))
        self.started()

    def started(self) -> None:
        for handler in (self.pods, self.nodes, self.quotas, self.engine.budgets):
            handler.synced()

    def observer(self) -> SchedulerObserver:
        self.seen = Preemptions()
        return self.seen

    async def runs(self, *pods: PodBuilder) -> None:
        for pod in pods:
            await self.run(pod)
            self.watch()

    def refuse(self, pod: PodBuilder) -> UnschedulablePod:
        if f"{pod.namespace}/{pod.name}" not in self.api.pods:
            self.create(pod)
        assert self.filtered(pod)["NodeNames"] is None
        found = self.unschedulable.get(uid(pod))
        assert found is not None
        return found

    async def preempts(self, pod: PodBuilder) -> None:
        """The pod is refused, and the preemptor looks at it; the informers see what it did."""
        await preempt_for(self.engine, self.refuse(pod))
        await self.engine.nominated_nodes.write()
        self.watch()

    def gone(self, *names: str) -> None:
        for name in names:
            self.api.delete_pod(f"default/{name}")
        self.watch()

    def woken(self) -> list[str]:
        return [request.name for request in pod_preemptors_of(self.engine).ready()]

    @property
    def evictions(self) -> list[str]:
        return [write.name.removeprefix("default/") for write in self.api.writes if write.verb == "evict"]

    async def preempt_verb(self, pod: PodBuilder, victims: dict[str, Sequence[str]]) -> dict[str, list[str]]:
        meta = {name: {"Pods": [{"UID": one} for one in uids], "NumPDBViolations": 0} for name, uids in victims.items()}
        body = {"Pod": pod.manifest(), "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
        answer = json.loads(await self.engine.answer_preempt(json.dumps(body).encode()))["NodeNameToMetaVictims"]
        return {name: [one["UID"] for one in found["Pods"]] for name, found in answer.items()}


def low(name: str, *, mem: int = CARD, gpu: int = 1) -> PodBuilder:
    return using_downward_api(gpu_pod(name, mem=mem, gpu=gpu))


def high(name: str = "high", *, mem: int = CARD, gpu: int = 1) -> PodBuilder:
    return low(name, mem=mem, gpu=gpu).with_priority(1000)


def budget(name: str, allowed: int, **labels: str) -> tuple[str, PodDisruptionBudget]:
    return f"default/{name}", PodDisruptionBudget(
        Metadata(name, namespace="default"),
        DisruptionBudgetSpec(LabelSelector(labels)),
        DisruptionBudgetStatus(allowed),
    )


def member(name: str, where: str) -> PodBuilder:
    """A bound member of a group."""
    grouped = low(name).annotate(("scheduling.x-k8s.io/pod-group", "train"))
    return grouped.on(where, f"{where}-0,NVIDIA,{CARD},0:;")


class GangCluster(PreemptionCluster):
    """A cluster whose gangs are looked at by the preemptor when a test says so."""

    def gang(self, name: str = "g") -> Gang:
        found = gangs_of(self.engine).registry.get("default", name)
        assert found is not None
        return found

    def refuse_all(self, pods: Sequence[PodBuilder], names: Sequence[str] | None = None) -> None:
        for pod in pods:
            if f"default/{pod.name}" not in self.api.pods:
                self.create(pod)
        for pod in pods:
            assert self.filtered(pod, names)["NodeNames"] is None

    async def preempts_for(
        self, pods: Sequence[PodBuilder], name: str = "g", *, names: Sequence[str] | None = None
    ) -> None:
        """All members are refused, and the preemptor looks at the gang; the informers see what it did."""
        self.refuse_all(pods, names)
        await preempt_for(self.engine, self.gang(name))
        self.watch()

    async def nominated(self) -> dict[str, str | None]:
        """By name, once all is written."""
        await self.engine.nominated_nodes.write()
        self.watch()
        return {key.removeprefix("default/"): node for key, node in sorted(self.api.nominated.items())}

    @property
    def claims(self) -> list[str]:
        """Nodes of what is claimed for gangs."""
        assert_cycles_match(self.engine)
        return sorted(each.facts.node for each in self.ledger.nominations.all())


def important_gang(
    size: int, *, priority: int = 1000, gpu: int = 1, mem: int = CARD, name: str = "g", **more: str
) -> list[PodBuilder]:
    asking = [high(f"{name}-{i}", gpu=gpu, mem=mem).with_priority(priority) for i in range(size)]
    return [pod.in_gang(name, size, **more) for pod in asking]
