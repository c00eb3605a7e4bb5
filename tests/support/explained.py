"""What the inspect commands say of pods and gangs in a cluster of builders: as values, and in people's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.inspect.explanation import Explanation, explain
from tessera.inspect.gang_status import GangStatus
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.explanation import explanation_lines, gang_lines, simulation_lines
from tessera.inspect.simulation import Simulation
from tessera.inspect.verdicts import Fits, FitsNowhere
from tests.support.builders import NodeBuilder, PodBuilder
from tests.support.cluster_states import state_of


def explained(nodes: Sequence[NodeBuilder], *pods: PodBuilder, key: str = "default/p", **state: Any) -> Explanation:
    """Of one pod; `state` is more of the cluster's state."""
    return explain(OfflineCluster(state_of(nodes, pods, **state)), key)


def told(found: Explanation | Simulation | GangStatus) -> str:
    match found:
        case Explanation():
            lines = explanation_lines(found)
        case Simulation():
            lines = simulation_lines(found)
        case GangStatus():
            lines = gang_lines(found)
    return "\n".join(line.text for line in lines)


def fits(found: Explanation) -> Fits:
    assert isinstance(found.verdict, Fits)
    return found.verdict


def refused(found: Explanation) -> FitsNowhere:
    assert isinstance(found.verdict, FitsNowhere)
    return found.verdict
