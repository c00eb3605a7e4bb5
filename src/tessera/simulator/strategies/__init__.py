"""Strategies by the names that users write."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from types import MappingProxyType

from tessera.simulator.cluster import Cluster
from tessera.simulator.strategies.base import Maker, Strategy
from tessera.simulator.strategies.fgd import FragmentationGradientDescent
from tessera.simulator.strategies.packing import Clustering, Packing
from tessera.simulator.strategies.shipped import Shipped
from tessera.simulator.strategies.simple import BestFit, Chance, DotProduct, FirstFit
from tessera.simulator.traces import Trace


def _shipped(node: str, device: str, cluster: Cluster, trace: Trace, dice: Random) -> Strategy:
    return Shipped(cluster, node=node, device=device)


STRATEGIES: Mapping[str, Maker] = MappingProxyType(
    {
        "fragmentation": partial(_shipped, "fragmentation", "fragmentation"),
        "fgd": FragmentationGradientDescent,
        "best-fit": BestFit,
        "gpu-packing": Packing,
        "gpu-clustering": Clustering,
        "dot-product": DotProduct,
        "first-fit": FirstFit,
        "random": Chance,
        "binpack-binpack": partial(_shipped, "binpack", "binpack"),
        "binpack-spread": partial(_shipped, "binpack", "spread"),
        "spread-binpack": partial(_shipped, "spread", "binpack"),
        "spread-spread": partial(_shipped, "spread", "spread"),
    }
)
"""the last four are HAMi's: node policy, then device policy; `binpack-spread` is HAMi's default"""
