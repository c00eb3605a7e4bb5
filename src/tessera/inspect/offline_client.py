"""The apiserver of an inspected cluster: there is none. Whoever tries to write or to ask meets a fault of ours."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.scheduler.kube_api import Annotations
from tessera.wire.objects import Node, Pod


class OfflineClient:
    """A cluster that is only looked at."""

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
