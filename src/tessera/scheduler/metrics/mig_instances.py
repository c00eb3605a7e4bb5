"""MIG instances that exist, by node: what agents add to a pod's reservations once Allocate has made the instance.

Only metrics want to know them. The ledger counts an instance from its reservation and does not care what it is called.
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.wire.errors import WireError
from tessera.wire.mig import MigAllocation, decode_mig_allocations


class MigInstances:
    """Fed with the annotation of every pod that is seen; tells `on_change` the node whose instances are others now."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._pods: dict[str, tuple[str, str]] = {}
        """uid -> node and text"""
        self._nodes: dict[str, dict[str, tuple[MigAllocation, ...]]] = {}

    def put(self, uid: str, *, node: str, text: str) -> None:
        """A pod on a node with this annotation; an empty text has no instances."""
        if self._pods.get(uid, ("", "")) == (node if text else "", text):
            return
        self.drop(uid)
        if not text:
            return
        self._pods[uid] = (node, text)
        try:
            found = tuple(one for one in decode_mig_allocations(text) if one.mig_uuid is not None)
        except WireError:
            found = ()  # the pod informer reports it and blocks the node
        if found:
            self._nodes.setdefault(node, {})[uid] = found
            self._on_change(node)

    def drop(self, uid: str) -> None:
        """The pod is gone or has ended."""
        node, _ = self._pods.pop(uid, ("", ""))
        of_node = self._nodes.get(node, {})
        if of_node.pop(uid, None) is not None:
            if not of_node:
                del self._nodes[node]
            self._on_change(node)

    def on(self, node: str) -> list[MigAllocation]:
        """In order of pods."""
        return [one for _, found in sorted(self._nodes.get(node, {}).items()) for one in found]
