"""The scheduler's own engine on a `State`: the same ledger, the same request reading, the same selection.

The engine is fed as its informers would feed it, never leads and so never writes. Its clock stands at the moment the
state was taken: an old snapshot shows what was alive then. Make it on a running event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from tessera.core.ledger import Ledger
from tessera.inspecting.setups import settings_of
from tessera.inspecting.state import InspectionError, Json, State
from tessera.sandbox.scheduling.fit import SELECTOR, TAINTS, UNSCHEDULABLE, Needs, needs_of, room_of
from tessera.scheduler.cluster import Annotations
from tessera.scheduler.settings import Settings
from tessera.scheduler.wiring import Engine
from tessera.vendors.base import Vendor
from tessera.wire.objects import Node, Pod, ResourceQuota

T = TypeVar("T")

STANDING_OFF = frozenset({UNSCHEDULABLE, TAINTS, SELECTOR})
"""kube-scheduler's own refusals that follow from node and pod alone; cpu, memory and volumes are not known here"""


class World:
    """A cluster that can be asked."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.settings: Settings = settings_of(state.setup)
        self.engine = Engine(
            self.settings,
            _Untouched(),
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

    @property
    def ledger(self) -> Ledger:
        return self.engine.ledger

    @property
    def vendors(self) -> Mapping[str, Vendor]:
        return self.engine.vendors

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


class _Untouched:
    """A cluster that is only looked at: whoever tries to write or to ask meets a fault of ours."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        raise AssertionError("an inspected cluster is not asked again")

    async def get_node(self, name: str) -> Node:
        raise AssertionError("an inspected cluster is not asked again")

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        raise AssertionError("an inspected cluster is not changed")

    async def annotate_pod(self, namespace: str, name: str, annotations: Annotations) -> None:
        raise AssertionError("an inspected cluster is not changed")

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None:
        raise AssertionError("an inspected cluster is not changed")
