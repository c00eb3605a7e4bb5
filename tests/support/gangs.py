"""Gangs on the stepwise scheduler: their members, and what a test asks of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tessera.core.ledger.holders import HolderKind
from tessera.core.ledger.ledger import Ledger
from tessera.scheduler.features.gangs.accounts import FULL_S, HoldAccounts
from tessera.scheduler.features.gangs.gang import GangState
from tests.support.builders import NodeBuilder, PodBuilder, gpu_pod, node
from tests.support.stepwise_scheduler import (
    World,
    assert_cycles_match,
    gangs_of,
    serving_downward_api,
    using_downward_api,
)

PATIENCE = 20.0
"""seconds for which a plan waits for its members"""
STARVING = 300.0
"""seconds after which a gang may get a turn"""

CARDS, SHARE = 32, 0.1
FULL = FULL_S * CARDS


def machine(name: str = "n1", cards: int = 2) -> NodeBuilder:
    """A node that gives each card to one pod."""
    return serving_downward_api(node(name).gpus(cards, slots=1))


def gang(size: int, *, name: str = "g", cards: int = 1, namespace: str = "default", **more: str) -> list[PodBuilder]:
    asking = using_downward_api(gpu_pod(gpu=cards))
    return [asking.called(f"{name}-{i}", namespace=namespace).in_gang(name, size, **more) for i in range(size)]


def state(world: World, name: str = "g") -> GangState | None:
    found = gangs_of(world.engine).registry.get("default", name)
    return found.state if found is not None else None


def held(world: World) -> int:
    """Holds in the ledger."""
    assert_cycles_match(world.engine)
    return sum(entry.kind is HolderKind.GANG for entry in world.ledger.pods())


def nodes_of(world: World, pods: Sequence[PodBuilder]) -> list[str]:
    return [world.api.pods[f"{pod.namespace}/{pod.name}"].spec.node_name for pod in pods]


async def bind_all(world: World, pods: Sequence[PodBuilder]) -> list[str]:
    """The errors of their binds; empty where all went well."""
    chosen = [world.chosen(pod) for pod in pods]
    return list(await asyncio.gather(*(world.bound(pod, at) for pod, at in zip(pods, chosen, strict=True))))


async def woken(world: World) -> list[str]:
    """Names of the members that are woken now."""
    return [member.name async for members in gangs_of(world.engine).wake() for member in members]


class Accounts(HoldAccounts):
    """Of a cluster with `CARDS`, at a time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now, Ledger({}), share=SHARE)
        self._cluster.card_count = CARDS
