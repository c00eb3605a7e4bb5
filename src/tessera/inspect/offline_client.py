"""The apiserver client of an inspected cluster. There is no apiserver, so every call is a bug in Tessera."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.scheduler.kube_api import Annotations
from tessera.wire.objects import Node, Pod


class OfflineClient:
    """Refuses every request."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        raise AssertionError("an inspected cluster is never read again")

    async def unbound_pods(self) -> list[Pod]:
        raise AssertionError("an inspected cluster is never read again")

    async def get_node(self, name: str) -> Node:
        raise AssertionError("an inspected cluster is never read again")

    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        raise AssertionError("an inspected cluster is never changed")

    async def annotate_pod(self, namespace: str, name: str, annotations: Annotations) -> Pod:
        raise AssertionError("an inspected cluster is never changed")

    async def annotate_node(self, name: str, annotations: Annotations, *, resource_version: str = "") -> None:
        raise AssertionError("an inspected cluster is never changed")
