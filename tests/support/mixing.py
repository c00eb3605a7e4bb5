"""Pods that use the downward API and pods that depend on Allocate on one node: bound, asked for, gone.

A scheduler's turns, a kubelet and a watch that may be behind, as small as they can be, around the real agent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.node.modes.base import AllocationRefused
from tessera.wire import keys
from tests.support.handover_node import HandoverNode, bound, view


@dataclass(frozen=True)
class Plan:
    """One pod: its containers' slices, how many of them are init containers, and whether it uses the downward API."""

    name: str
    containers: tuple[str, ...]
    inits: int
    uses_downward_api: bool

    def excludes(self, other: Plan) -> bool:
        """The scheduler's rule: whether the two must not be in handover at the same time."""
        if not self.uses_downward_api and not other.uses_downward_api:
            return True
        return self.uses_downward_api != other.uses_downward_api and not self._counts.isdisjoint(other._counts)

    @property
    def _counts(self) -> set[int]:
        return {len(text.split()) for text in self.containers if text}


class Kubelet:
    """Asks for one pod after the other, for containers in their order; picks devices as it likes unless steered."""

    def __init__(self, world: HandoverNode, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._free = [f"GPU-{card}::{number}" for card in "abc" for number in range(16)]
        self._taken: dict[str, list[str]] = {}
        self.wrong: list[str] = []
        self.refused: list[str] = []

    async def admit(self, plan: Plan, *, gives_up: bool = False, answered: int = 0) -> bool:
        """All containers of a pod; perhaps kubelet gives it up half-way for a reason of its own. The first `answered`
        ones have their devices from an earlier process."""
        reusable: list[str] = []
        taken = self._taken.setdefault(plan.name, [])
        pod = view(self._world.api.fake.pods[f"default/{plan.name}"])
        for position, text in enumerate(plan.containers):
            count = len(text.split())
            if not count:
                continue
            if gives_up and taken:
                break
            ids = self._choose(count, reusable, asks=position >= answered)
            if position >= answered:
                try:
                    answer = await self._world.ask(*ids)
                except AllocationRefused as refusal:
                    self.refused.append(f"{plan.name}/c{position}: {refusal}")
                    gives_up = True
                    break
                claim = pod.assignment(position)
                assert claim is not None
                if not plan.uses_downward_api and answer.get("what") != repr(claim.what):
                    self.wrong.append(f"{plan.name}/c{position} got {answer}")
            taken += [each for each in ids if each not in taken]
            self._free = [each for each in self._free if each not in ids]
            if position < plan.inits:
                reusable = list(dict.fromkeys(reusable + ids))
            else:
                reusable = [each for each in reusable if each not in ids]
                self._world.resources.holds(plan.name, f"c{position}", *ids)
        if gives_up:
            self.release(plan)
        return not gives_up

    def release(self, plan: Plan) -> None:
        """The pod's devices are free again."""
        self._free += self._taken.pop(plan.name, [])
        for position in range(len(plan.containers)):
            self._world.resources.held.pop(("default", plan.name, f"c{position}"), None)

    def _choose(self, count: int, reusable: Sequence[str], *, asks: bool) -> list[str]:
        chosen = list(reusable[:count])
        if len(chosen) == count:
            return chosen
        available = self._rng.sample(self._free, len(self._free))
        if asks and self._rng.random() < 0.7:
            preferred = self._world.prefer(*available, count=count, must=chosen)
            chosen = chosen + [each for each in preferred if each not in chosen]
        chosen += [each for each in available if each not in chosen]
        return chosen[:count]


class Node:
    """Pods come as their turns allow, are asked for in any order, run and go."""

    def __init__(
        self, world: HandoverNode, plans: Sequence[Plan], rng: random.Random, *, patience: float, behind: float
    ) -> None:
        """`patience`: seconds that pods that use the downward API wait for a dependent pod at most; 0: no pod waits.
        `behind`: the most seconds that the agent's watch is behind kubelet's."""
        self._world = world
        self._rng = rng
        self._patience = patience
        self._behind = behind
        self._coming = list(plans)
        self._bound: list[Plan] = []
        self._bound_at: dict[str, float] = {}
        self._running: list[Plan] = []
        self._at = 0
        self._late: list[asyncio.Task[None]] = []
        self.kubelet = Kubelet(world, rng)

    async def live(self) -> None:
        """Until every pod was there."""
        while self._coming or self._bound or self._running:
            free = bool(self._coming) and not any(self._waits(self._coming[0], each) for each in self._in_hand())
            steps = [self._bind] * (free * 3) + [self._admit] * (bool(self._bound) * 2)
            steps += [self._end] * bool(self._running)
            await self._rng.choice(steps)()
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.2, 1.0, 4.0)))
        await asyncio.gather(*self._late)

    async def _bind(self) -> None:
        plan = self._coming.pop(0)
        self._bound_at[plan.name] = asyncio.get_running_loop().time()
        self._fall_behind()
        reading = list(range(len(plan.containers))) if plan.uses_downward_api else []
        self._world.api.put(bound(plan.name, *plan.containers, inits=plan.inits, downward_api=reading, at=self._at))
        self._at += 1
        self._bound.append(plan)

    async def _admit(self) -> None:
        plan = self._rng.choice(self._bound)
        admitted = await self.kubelet.admit(plan)
        self._bound.remove(plan)
        self._fall_behind()
        self._world.api.status(plan.name, "Running" if admitted else "Failed")
        self._running.append(plan)

    async def _end(self) -> None:
        plan = self._rng.choice(self._running)
        self._running.remove(plan)
        self.kubelet.release(plan)
        self._fall_behind()
        self._world.api.delete(plan.name)

    def _waits(self, plan: Plan, other: Plan) -> bool:
        if not plan.excludes(other):
            return False
        if plan.uses_downward_api:
            return asyncio.get_running_loop().time() < self._bound_at[other.name] + self._patience
        return not other.uses_downward_api or self._patience > 0

    def _in_hand(self) -> list[Plan]:
        """Pods whose handover the API does not show to be over."""
        there = {plan.name: plan for plan in (*self._bound, *self._running)}
        pods = [(plan, self._world.api.fake.pods[f"default/{name}"]) for name, plan in there.items()]
        return [
            plan
            for plan, pod in pods
            if pod.status.phase == "Pending" and pod.annotations[keys.BIND_PHASE] == keys.PHASE_ALLOCATING
        ]

    def _fall_behind(self) -> None:
        if self._world.api.behind or not self._behind:
            return
        self._world.api.behind = True
        self._late.append(asyncio.create_task(self._catch_up(self._rng.uniform(0, self._behind))))

    async def _catch_up(self, after: float) -> None:
        await asyncio.sleep(after)
        self._world.api.behind = False
        self._world.api.catch_up()
