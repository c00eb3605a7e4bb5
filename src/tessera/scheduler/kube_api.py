"""What the service asks of the apiserver: six calls, each with a deadline, none retried here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tessera.kube.client import KubeClient
from tessera.kube.resources import NODES, PODS
from tessera.wire.objects import Node, Pod

Annotations = Mapping[str, str | None]
"""None removes"""


class Cluster(Protocol):
    """The apiserver as binding, locks, waking and registration see it."""

    async def get_pod(self, namespace: str, name: str) -> Pod: ...

    async def get_node(self, name: str) -> Node: ...

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None: ...

    async def annotate_pod(self, namespace: str, name: str, annotations: Annotations) -> None: ...

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None: ...


class KubeCluster:
    """The real one."""

    def __init__(self, client: KubeClient, *, on_write: Callable[[str], None] = lambda _verb: None) -> None:
        """`on_write` is told the verb of every write that is sent."""
        self._client = client
        self._on_write = on_write

    async def get_pod(self, namespace: str, name: str) -> Pod:
        return await self._client.get(PODS.path(namespace, name), Pod)

    async def get_node(self, name: str) -> Node:
        return await self._client.get(NODES.path(name=name), Node)

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
        self._on_write("bind")
        await self._client.bind(namespace, name, uid=uid, node=node, annotations=annotations, labels=labels)

    async def annotate_pod(self, namespace: str, name: str, annotations: Annotations) -> None:
        self._on_write("patch")
        await self._client.patch(PODS.path(namespace, name), {"metadata": {"annotations": annotations}})

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None:
        metadata: dict[str, Any] = {"annotations": annotations}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        self._on_write("patch")
        await self._client.patch(NODES.path(name=name), {"metadata": metadata})
