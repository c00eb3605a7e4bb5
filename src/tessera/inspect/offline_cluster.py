"""The scheduler's own engine on a `State`: the same ledger, the same request reading, the same selection.

The engine is fed as its informers would feed it, never leads and so never writes. Its clock stands at the moment the
state was taken: an old snapshot shows what was alive then. What its pods teach is learned when somebody wants to know.
Make it on a running event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from tessera.core.ledger import Ledger
from tessera.core.policies import looks_ahead
from tessera.core.requests import HostAsk, PodRequest
from tessera.inspect.demand import Learning, asked_before
from tessera.inspect.offline_client import OfflineClient
from tessera.inspect.scheduler_settings import settings_of
from tessera.inspect.state import InspectionError, Json, State
from tessera.lab.sandbox.scheduling.fit import SELECTOR, TAINTS, UNSCHEDULABLE, Needs, needs_of, room_of
from tessera.scheduler.engine import Engine
from tessera.scheduler.pod_requests import Prepared
from tessera.scheduler.settings import Settings
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import BadPod
from tessera.wire.objects import Container, Metadata, Node, Pod, PodSpec, ResourceQuota, ResourceRequirements

T = TypeVar("T")

STANDING_OFF = frozenset({UNSCHEDULABLE, TAINTS, SELECTOR})
"""kube-scheduler's own refusals that follow from node and pod alone; cpu, memory and volumes are not known here"""


class OfflineCluster:
    """A cluster that can be asked."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.settings: Settings = settings_of(state.setup)
        self.engine = Engine(
            self.settings,
            OfflineClient(),
            now=lambda: state.taken,
            zone=datetime.now().astimezone().tzinfo or UTC,
            spawn=_never,
            leads=lambda: False,
        )
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Pod] = {}
        """by namespace/name"""
        self.documents: dict[str, Json] = {}
        """the same pods as JSON"""
        self._asked: list[PodRequest] = []
        for document in state.nodes:
            node = _read(document, Node)
            self.nodes[node.name] = document
            self.engine.nodes.put(node.name, node)
        for document in state.pods:
            pod = _read(document, Pod)
            key = f"{pod.metadata.namespace}/{pod.metadata.name}"
            self.pods[key], self.documents[key] = pod, document
            self.engine.pods.put(key, pod)
        for document in state.quotas:
            quota = _read(document, ResourceQuota)
            self.engine.quotas.put(f"{quota.metadata.namespace}/{quota.metadata.name}", quota)
        for name, ask in state.others.items():
            self.occupy(f"others of {name}", name, ask)

    @property
    def ledger(self) -> Ledger:
        return self.engine.ledger

    @property
    def vendors(self) -> Mapping[str, Vendor]:
        return self.engine.vendors

    @cached_property
    def learning(self) -> Learning:
        """What the pods teach: those of the state, then those asked about since."""
        learning = Learning(self.ledger, self.vendors)
        for pod in asked_before(self.pods, self.documents, self.vendors, scheduler_name=self.settings.scheduler_name):
            prepared = self.engine.filter.prepare(pod)
            if isinstance(prepared, Prepared) and prepared.request.asks_for_devices:
                learning.observe(prepared.request)
        for request in self._asked:
            learning.observe(request)
        return learning

    def asked_about(self, request: PodRequest) -> None:
        """Another pod has been judged, as filter judges one that it has not met before."""
        self._asked.append(request)
        if "learning" in self.__dict__:
            self.learning.observe(request)

    def prepare(self, pod: Pod) -> Prepared | BadPod:
        """The pod as filter would place it now."""
        prepared = self.engine.filter.prepare(pod)
        if isinstance(prepared, BadPod) or prepared.request.outlook is None:
            return prepared
        ahead = replace(prepared.request, outlook=self.learning.outlook)
        return msgspec.structs.replace(prepared, request=ahead)

    @contextmanager
    def without(self, key: str) -> Iterator[None]:
        """The cluster as if the pod had gone, for as long as the block lasts."""
        self.engine.pods.drop(key)
        try:
            yield
        finally:
            self.engine.pods.put(key, self.pods[key])

    def occupy(self, who: str, node: str, ask: HostAsk) -> None:
        """Somebody without a name asks for this much of the host, where anybody looks at hosts."""
        if not looks_ahead(self.settings.policies.node, self.settings.policies.device):
            return
        amounts: dict[str, str | int | float] = {"cpu": f"{ask.cpu}m", "memory": f"{ask.memory}Mi"}
        containers = [Container(resources=ResourceRequirements(requests=amounts))]
        self.engine.pods.put(who, Pod(Metadata(uid=who), PodSpec(containers=containers, node_name=node)))

    def vacate(self, who: str) -> None:
        self.engine.pods.drop(who)

    def candidates(self, document: Json) -> tuple[list[str], dict[str, str]]:
        """The nodes that kube-scheduler would ask about, sorted, and why it would not ask about the others."""
        needs = Needs({}, *_wishes(needs_of(document)))
        kept_off: dict[str, str] = {}
        for name, node in sorted(self.nodes.items()):
            reasons = [reason for reason in room_of(node).misfits(needs) if reason in STANDING_OFF]
            if reasons:
                kept_off[name] = reasons[0]
        return [name for name in sorted(self.nodes) if name not in kept_off], kept_off


def _wishes(needs: Needs) -> tuple[Any, Any, Any]:
    return needs.selector, needs.affinity, needs.tolerations


def _read(document: Json, kind: type[T]) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        metadata = document.get("metadata") if isinstance(document, dict) else None
        name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
        raise InspectionError(f"{kind.__name__} {name} cannot be read: {error}") from error


def _never(work: Coroutine[Any, Any, None]) -> None:
    work.close()
