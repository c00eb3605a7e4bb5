"""A cluster that questions can be asked about: the view of an engine, and the pods and nodes as kube-scheduler sees
them.

Whose engine it is differs: that of a running scheduler, or one of the reader's own, which it may try things on
(`offline_cluster`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import msgspec

from tessera.core.ledger.ledger import Ledger
from tessera.core.search import finish
from tessera.core.search.gang_trial import Domains
from tessera.inspect.state import ClusterState, InspectionError, Json
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.node_filters import FilteredNode, NodeTraits, pod_constraints
from tessera.scheduler.pod_requests import PreparedRequest
from tessera.scheduler.settings import Settings
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import BadPod
from tessera.wire.objects import Pod


class InspectedCluster:
    """What all answers are made from."""

    def __init__(self, view: EngineView, state: ClusterState, settings: Settings) -> None:
        self.view = view
        self.state = state
        self.settings = settings
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Pod] = {}
        """by namespace/name"""
        self.documents: dict[str, Json] = {}
        """the same pods as JSON"""

    @property
    def ledger(self) -> Ledger:
        return self.view.ledger

    @property
    def vendors(self) -> Mapping[str, Vendor]:
        return self.view.vendors

    def prepare(self, pod: Pod) -> PreparedRequest | BadPod:
        """The pod's request as filter would read it now."""
        return self.view.read(pod)

    def domains(self, topology: str) -> Domains | None:
        """The nodes by the value of a label; None if none is asked for."""
        return self.view.domains(topology)

    def candidates(self, document: Json) -> tuple[list[str], dict[str, str]]:
        """The nodes that kube-scheduler would ask about, sorted, and why it would not ask about the others."""
        return finish(self.candidates_in_steps(document))

    def candidates_in_steps(self, document: Json) -> Generator[None, None, tuple[list[str], dict[str, str]]]:
        """The same, node by node: a pod may have thousands of terms."""
        constraints = pod_constraints(document)
        candidates: list[str] = []
        filtered_out: dict[str, str] = {}
        for name, node in sorted(self.nodes.items()):
            yield
            reason = node_traits(node).refusal(constraints)
            if reason is None:
                candidates.append(name)
            else:
                filtered_out[name] = reason
        return candidates, filtered_out


def node_traits(node: Json) -> NodeTraits:
    """Raises InspectionError for what is no node: a snapshot may hold anything."""
    try:
        return msgspec.convert(node, FilteredNode).traits
    except msgspec.ValidationError as error:
        raise InspectionError(f"a node cannot be read: {error}") from error
