"""The service audits its ledger: some nodes at a time, fewer under load, all in the end."""

from __future__ import annotations

import pytest

from tessera.scheduler import service as module
from tessera.scheduler.metrics.service_metrics import Metrics
from tessera.scheduler.service import AUDIT_NODES, AUDIT_NODES_WHEN_BUSY, BUSY, audited_at_once
from tessera.scheduler.settings import Settings
from tessera_lab.sandbox.control_plane import ControlPlane
from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.event_loops import on_uvloop
from tests.support.scheduler_process import EXTENDER_ONLY, running, until

NODES = ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("changes", "nodes"), [(0, AUDIT_NODES), (BUSY, AUDIT_NODES), (BUSY + 1, AUDIT_NODES_WHEN_BUSY)]
)
def test_a_rush_leaves_less_time_for_it(changes: int, nodes: int) -> None:
    assert audited_at_once(changes) == nodes


@on_uvloop
async def test_in_a_lasting_rush_every_node_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUDIT_PERIOD", 0.001)
    monkeypatch.setattr(module, "AUDIT_NODES_WHEN_BUSY", 1)
    monkeypatch.setattr(module, "BUSY", -1)
    seen: list[str] = []
    monkeypatch.setattr(Metrics, "on_audit", lambda _self, node, _findings: seen.append(node))
    nodes = [SimulatedNode(name, gpu_cards(name, 1)) for name in NODES]
    async with ControlPlane(nodes=nodes) as plane, running(plane, Settings(listeners=EXTENDER_ONLY)):
        await until(lambda: len(seen) >= 2 * len(NODES))
    assert sorted(seen[: len(NODES)]) == NODES
    assert seen[len(NODES) : 2 * len(NODES)] == seen[: len(NODES)]
