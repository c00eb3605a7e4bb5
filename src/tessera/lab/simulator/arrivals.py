"""The order in which pods arrive under the saturation protocol.

A trace's pods are shuffled by a seed and followed by random re-draws of them until the cards asked for reach the wanted
part of the capacity. The same seed gives the same pods in every run and under every policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tessera.lab.simulator.traces import Trace, TracePod


def arriving(trace: Trace, seed: int, *, until: float) -> Iterator[TracePod]:
    """Pods one by one until those yielded ask for `until` times the capacity."""
    dice = Random(seed)
    pods = list(trace.pods)
    dice.shuffle(pods)
    limit = until * trace.capacity
    asked = 0
    for pod in _endless(pods, dice):
        yield pod
        asked += pod.ask.demand
        if asked >= limit:
            return


def _endless(pods: list[TracePod], dice: Random) -> Iterator[TracePod]:
    yield from pods
    while True:
        yield dice.choice(pods)
