"""Cluster states for tests of `tessera inspect`, read from builders as from a live cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.inspect import sanitize
from tessera.inspect.state import ClusterState, Json, Setup
from tests.support.builders import NOW, NodeBuilder, PodBuilder, vendors


def quota(namespace: str, limits: Mapping[str, Any], name: str = "q") -> Json:
    hard = {f"limits.{resource}": str(limit) for resource, limit in limits.items()}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": hard}}


def plain(thing: NodeBuilder | PodBuilder) -> Json:
    """As plain JSON: every amount is a string or a number."""
    found: Json = json.loads(json.dumps(thing.manifest()))
    return found


def state_of(
    nodes: Sequence[NodeBuilder],
    pods: Sequence[PodBuilder] = (),
    *,
    quotas: Sequence[Json] = (),
    setup: Setup | None = None,
    taken: float = NOW,
) -> ClusterState:
    kept = sanitize.deciding_domains(vendors())
    return ClusterState(
        "a test",
        taken,
        tuple(sanitize.sanitize_node(plain(node), kept) for node in nodes),
        tuple(sanitize.sanitize_pod(plain(pod), kept) for pod in pods),
        tuple(sanitize.sanitize_quota(one) for one in quotas),
        setup or Setup(),
    )
