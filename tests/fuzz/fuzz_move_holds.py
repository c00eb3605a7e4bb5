"""Annotations that ask for places on a node, as the scheduler reads and holds them: no value breaks a ledger."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from datetime import UTC
from typing import Any, cast

import atheris

with atheris.instrument_imports(
    include=["tessera.wire.moves", "tessera.scheduler.features.moves.holds", "tessera.core.holdings"]
):
    from tessera.core.audit import audit
    from tessera.core.devices import MIG, Device, NodeFacts
    from tessera.core.ledger import Ledger
    from tessera.scheduler.allocation_queue import AllocationQueue
    from tessera.scheduler.clock import Clock
    from tessera.scheduler.features.moves.holds import MoveHolds
    from tessera.scheduler.kube_api import KubeApi
    from tessera.scheduler.observer import SchedulerObserver
    from tessera.scheduler.pod_cycle import PodCycles
    from tessera.scheduler.unschedulable_pods import UnschedulablePods
    from tessera.vendors.base import Switches
    from tessera.vendors.registry import build_vendors
    from tessera.wire import keys
    from tessera.wire.objects import Metadata, Node

VENDORS = build_vendors(None, Switches())
NOW = 1_700_000_000.0


def _never(work: Coroutine[Any, Any, None]) -> None:
    work.close()


def one_input(data: bytes) -> None:
    ledger = Ledger(VENDORS)
    cards = (Device("a", "NVIDIA", slots=10, memory=1000), Device("b", "NVIDIA", slots=10, memory=1000, mode=MIG))
    ledger.observe_node(NodeFacts("n", cards))
    cycles = PodCycles(
        ledger,
        cast("AllocationQueue", None),
        UnschedulablePods(),
        clock=Clock(lambda: NOW, lambda: 0.0, UTC),
        reservation_s=60.0,
        observer=SchedulerObserver(),
    )
    holds = MoveHolds(cycles, cast("KubeApi", None), spawn=_never, is_ready=lambda: True, make_way=lambda _: None)
    text = data.decode("utf-8", "surrogateescape")
    holds.put_node(Node(Metadata(name="n", annotations={f"{keys.MOVE_PREFIX}uid": text})))
    audit(ledger)
    holds.tick()
    holds.drop_node("n")
    view = ledger.node("n")
    assert view is not None
    assert not any(card.used or card.used_memory or card.mig for card in view.cards), "what was held is given back"


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
