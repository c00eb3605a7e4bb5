"""Which binds need a turn or the node lock, from what the node's agent says about itself and what the pod carries.

| node | pod | turn | lock |
|---|---|---|---|
| agent hands over by environment | carries its slices | waits a moment for dependent pods it could be taken for | no |
| agent of ours otherwise | any (dependent) | beside pods it could not be mixed up with | no |
| no agent of ours, vendor with a lock | any | alone | yes |
| no agent of ours, vendor without a lock | any | no | no |

`--node-lock always` and `never` override the last column.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from tessera.core.grants import Placement
from tessera.core.holdings import PodFacts
from tessera.core.requests import Role
from tessera.kube.errors import KubeError
from tessera.scheduler.allocation_queue import Handover, Shape, shape_of
from tessera.scheduler.node_lock import Held, NodeLocks, NotHeld
from tessera.scheduler.pod_requests import Prepared
from tessera.scheduler.settings import NodeLockMode
from tessera.vendors.base import Vendor
from tessera.wire import keys
from tessera.wire.extender import BindingArgs
from tessera.wire.objects import Node

log = structlog.get_logger(__name__)

BY_ENVIRONMENT = "env"
"""word in the agent's annotation: containers get their slices from their own pod"""


class Turns:
    """Turn and lock of one bind after the other."""

    def __init__(
        self,
        handover: Handover,
        locks: NodeLocks,
        vendors: Mapping[str, Vendor],
        *,
        mode: NodeLockMode,
        timeout: float,
    ) -> None:
        self._handover = handover
        self._locks = locks
        self._vendors = vendors
        self._mode = mode
        self._timeout = timeout
        self._agents: dict[str, frozenset[str]] = {}
        self._locked: dict[str, list[Held]] = {}
        """by uid: locks taken here"""
        self._locking: set[str] = set()
        """uids that have their turn and wait for HAMi's lock"""

    def seen(self, node: Node) -> None:
        """A node as the informer shows it."""
        text = node.annotations.get(keys.AGENT)
        if text is None:
            self._agents.pop(node.name, None)
        else:
            self._agents[node.name] = frozenset(text.replace(",", " ").split())
        self._locks.seen(node)

    def needs_lock(self, placement: Placement) -> bool:
        if self._mode is not NodeLockMode.AUTO:
            return self._mode is NodeLockMode.ALWAYS
        return placement.node not in self._agents and self._has_lock(placement)

    def needs_turn(self, placement: Placement, *, carries: bool) -> bool:
        agent = self._agents.get(placement.node)
        if agent is None:
            return self.needs_lock(placement) or self._has_lock(placement)
        return not (carries and BY_ENVIRONMENT in agent) or self.needs_lock(placement)

    async def take(self, args: BindingArgs, prepared: Prepared, placement: Placement) -> str | None:
        """Wait for the turn and the lock, no longer than the timeout for all; None, or why they could not be had."""
        roles, carries = prepared.request.roles, prepared.uses_downward_api
        shape = self._shape(placement, roles, carries=carries, uncontrolled=prepared.disables_enforcement)
        if shape is None:
            return None
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout
        owner = (args.pod_namespace, args.pod_name)
        # A lock that an earlier process took for this pod: whoever has the turn only to wait for it waits for this pod.
        locked = self._locks.owner(args.node) == owner and self._handover.holders(args.node) <= self._locking
        if not await self._handover.turn(args.node, args.pod_uid, shape, timeout=self._timeout, at_once=locked):
            return f"node {args.node} is still handing devices to another pod"
        # One that is carried needs no turn, and then no lock either.
        for key in self._lock_keys(placement) if not shape.carried and self.needs_lock(placement) else ():
            problem = await self._lock(args, key, timeout=deadline - clock())
            if problem is not None:
                return problem
        return None

    async def _lock(self, args: BindingArgs, key: str, *, timeout: float) -> str | None:
        if any((held.node, held.key) == (args.node, key) for held in self._locked.get(args.pod_uid, ())):
            return None
        if key == keys.NODE_LOCK:
            self._locking.add(args.pod_uid)
        try:
            answer = await self._locks.acquire(args.node, key, (args.pod_namespace, args.pod_name), timeout=timeout)
        finally:
            self._locking.discard(args.pod_uid)
        if isinstance(answer, NotHeld):
            return answer.text
        # Even if the pod is gone by now: then the bind finds out and gives the lock back.
        self._locked.setdefault(args.pod_uid, []).append(answer)
        return None

    async def give_back(self, args: BindingArgs) -> None:
        """The bind failed: nothing will be handed over. A lock that cannot be removed is left to its expiry."""
        try:
            for held in self._locked.pop(args.pod_uid, ()):
                try:
                    await self._locks.release(held)
                except KubeError as error:
                    log.warning("node lock not released", node=held.node, key=held.key, error=str(error))
        finally:
            # Last: whoever is next finds the lock gone.
            self._handover.over(args.pod_uid)

    async def bound(self, args: BindingArgs) -> None:
        """The binding is written. Where its handover is over already, nobody else will remove what was taken for it."""
        if not self._handover.has_turn(args.node, args.pod_uid):
            await self.give_back(args)
        self._handover.begun(args.pod_uid)

    def resume(self, facts: PodFacts, *, carries: bool, uncontrolled: bool = False) -> None:
        """A pod in handover that this process did not bind itself."""
        placement = Placement(facts.node, facts.grants)
        roles = [span.role for span in facts.spans]
        shape = self._shape(placement, roles, carries=carries, uncontrolled=uncontrolled)
        if shape is not None:
            self._handover.resume(facts.node, facts.uid, shape)

    def over(self, uid: str) -> None:
        """The pod's handover ended; its plugin removed the lock."""
        self._locked.pop(uid, None)
        self._handover.over(uid)

    def forget_old(self) -> None:
        """End turns that no agent ever ended; locks that were taken with them have expired."""
        for uid in self._handover.forget_old():
            self._locked.pop(uid, None)

    def _shape(self, placement: Placement, roles: Sequence[Role], *, carries: bool, uncontrolled: bool) -> Shape | None:
        """None where nobody hands the pod over whom the scheduler could wait for."""
        inits = [position for position, role in enumerate(roles) if role is Role.INIT]
        if self.needs_turn(placement, carries=carries):
            return shape_of(placement, inits=inits, alone=uncontrolled or self._alone(placement))
        # It waits for nobody of its kind, but dependent pods have to know of it.
        return shape_of(placement, inits=inits, carried=True) if placement.node in self._agents else None

    def _alone(self, placement: Placement) -> bool:
        """Whether the plugin can tell no two pods apart: a foreign one, with its lock or without."""
        return placement.node not in self._agents or self.needs_lock(placement)

    def _has_lock(self, placement: Placement) -> bool:
        return any(self._vendors[vendor].keys.lock for vendor in placement.grants)

    def _lock_keys(self, placement: Placement) -> list[str]:
        """One key a vendor, each once; HAMi's common one where a vendor has none of its own."""
        return sorted({self._vendors[vendor].keys.lock or keys.NODE_LOCK for vendor in placement.grants})
