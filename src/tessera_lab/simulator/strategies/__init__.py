"""Strategies by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from types import MappingProxyType

from tessera_lab.simulator.cluster import SimulatedCluster
from tessera_lab.simulator.strategies.base import Strategy, StrategyFactory
from tessera_lab.simulator.strategies.baselines import (
    BestFit,
    DotProduct,
    FirstFit,
    GpuClustering,
    GpuPacking,
    RandomChoice,
)
from tessera_lab.simulator.strategies.fgd import FragmentationGradientDescent
from tessera_lab.simulator.strategies.shipped import RandomTieBreak, Shipped
from tessera_lab.simulator.traces import Trace


def _fragmentation(cluster: SimulatedCluster, trace: Trace, dice: Random) -> Strategy:
    return Shipped(cluster, node="fragmentation", device="fragmentation")


def _hami(node: str, device: str, cluster: SimulatedCluster, trace: Trace, dice: Random) -> Strategy:
    return RandomTieBreak(Shipped(cluster, node=node, device=device), dice)


STRATEGIES: Mapping[str, StrategyFactory] = MappingProxyType(
    {
        "fragmentation": _fragmentation,
        "fgd": FragmentationGradientDescent,
        "best-fit": BestFit,
        "gpu-packing": GpuPacking,
        "gpu-clustering": GpuClustering,
        "dot-product": DotProduct,
        "first-fit": FirstFit,
        "random": RandomChoice,
        "binpack-binpack": partial(_hami, "binpack", "binpack"),
        "binpack-spread": partial(_hami, "binpack", "spread"),
        "spread-binpack": partial(_hami, "spread", "binpack"),
        "spread-spread": partial(_hami, "spread", "spread"),
    }
)
"""the last four are HAMi's node and device policies, with random ties; `binpack-spread` is its default"""
