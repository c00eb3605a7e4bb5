"""The apiserver calls that handover makes. Each has a deadline; none is retried here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tessera.node.handover.assignments import ObjectKey
from tessera.wire.objects import Node, Pod

Annotations = Mapping[str, str | None]
"""None removes"""


class KubeCluster:
    """Every call may raise KubeError."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._client.get(PODS.path(namespace, name), Pod)

    async def list_pods(self, node: str) -> Sequence[Pod]:
        """All pods of a node. The list is at least as new as what kubelet knew when the call was made."""
        return (await self._client.list(PODS.path(), Pod, field_selector=f"spec.nodeName={node}")).items

    async def annotate_pod(self, pod: ObjectKey, annotations: Annotations) -> Pod:
        """The pod afterwards. A later pod of the same name is not touched: its uid cannot be changed (422)."""
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        return await self._client.patch(PODS.path(pod.namespace, pod.name), body, kind=Pod)

    async def get_node(self, name: str) -> Node:
        return await self._client.get(NODES.path(name=name), Node)

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str) -> None:
        metadata: dict[str, Any] = {"annotations": annotations, "resourceVersion": resource_version}
        await self._client.patch(NODES.path(name=name), {"metadata": metadata})
