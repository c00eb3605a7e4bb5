from __future__ import annotations

from random import Random

from tessera_lab.simulator.cluster import SimulatedCluster
from tessera_lab.simulator.simulation import STRATEGIES, place_pod
from tessera_lab.simulator.strategies import Strategy
from tessera_lab.simulator.traces import TraceNode, TraceRequest
from tests.unit.lab.simulator.made_up import trace

SHARED = TraceNode("shared", 32_000, 65_536, 2, "T4")
WHOLE = TraceNode("whole", 32_000, 65_536, 2, "T4")


class World:
    """Nodes, and pods put where a test wants them before a strategy is asked."""

    def __init__(self, policy: str, *nodes: TraceNode, seed: int = 1) -> None:
        self.cluster = SimulatedCluster(nodes)
        self.strategy: Strategy = STRATEGIES[policy](self.cluster, trace(nodes), Random(seed))

    def put(self, name: str, ask: TraceRequest) -> None:
        row = self.cluster.arrays.row(name)
        self.cluster.put(ask, row, self.strategy.cards(ask, row) if ask.cards else None)

    def chosen(self, ask: TraceRequest) -> str:
        found = place_pod(self.cluster, self.strategy, ask)
        assert found is not None
        return self.cluster.arrays.names[found[0]]


def part(milli: int, *, cpu: int = 1_000) -> TraceRequest:
    return TraceRequest(cpu, 1_024, 1, milli)


def cards(number: int) -> TraceRequest:
    return TraceRequest(1_000, 1_024, number, 1_000)


def test_the_node_with_less_left_is_taken_and_nearly_equal_ones_by_name() -> None:
    world = World("best-fit", SHARED, WHOLE)
    world.put("whole", part(1, cpu=1))
    assert world.chosen(part(100)) == "shared"
    world = World("best-fit", SHARED, WHOLE)
    world.put("whole", part(900, cpu=16_000))
    assert world.chosen(cards(1)) == "whole"


def test_hami_s_ties_are_left_to_chance_and_nothing_else() -> None:
    seen = {World("binpack-spread", SHARED, WHOLE, seed=seed).chosen(part(300)) for seed in range(20)}
    assert seen == {"shared", "whole"}
    for seed in range(20):
        world = World("binpack-spread", SHARED, WHOLE, seed=seed)
        world.put("whole", part(300))
        assert world.chosen(part(300)) == "whole"


def test_under_hami_pods_without_cards_go_where_kube_scheduler_puts_them() -> None:
    lopsided = TraceNode("lopsided", 32_000, 8_192, 2, "T4")
    world = World("binpack-spread", lopsided, WHOLE)
    world.put("whole", part(300, cpu=2_000))
    assert world.chosen(TraceRequest(2_000, 4_096)) == "whole"
    world = World("binpack-spread", SHARED, WHOLE)
    world.put("whole", part(300, cpu=16_000))
    assert world.chosen(TraceRequest(2_000, 4_096)) == "shared"
