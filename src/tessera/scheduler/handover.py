"""Turns between bind and the end of a pod's last Allocate.

kubelet's Allocate does not say which pod it is for. Pods whose grants travel with them need no turn. Where the answer
itself must be right, pods of one node that the agent could mix up go one after the other:

    ask ----> waiting ----(no conflict with pods in hand or earlier waiters)----> in hand ----> over
                 \\                                                     success, failed, gone or forgotten
                  +--(waited too long: the bind fails and is tried again)

The order is the order of asking. Waiting is inside bind, which costs no other pod anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tessera.core.devices import MigSlot
from tessera.core.grants import Placement

Slice = tuple[str, int, int, MigSlot | None]
"""uuid, memory, cores, and the instance where the card is cut into some"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What Allocate calls of a pod look like from outside."""

    slices: tuple[tuple[Slice, ...], ...]
    """by container, only those that get devices"""
    alone: bool = False
    """True where the plugin hands over one pod at a time, or the pod gets what no other of its shape does"""

    def conflicts(self, other: Shape) -> bool:
        """Whether an Allocate call could be meant for either pod and the answers would differ."""
        if self.alone or other.alone:
            return True
        if self.slices == other.slices:
            return False
        return not {len(s) for s in self.slices}.isdisjoint(len(s) for s in other.slices)


def shape_of(placement: Placement, *, alone: bool = False) -> Shape:
    """The shape of a placement's handover, over all vendors."""
    slices = tuple(
        tuple((grant.uuid, grant.memory, grant.cores, grant.mig) for grant in grants)
        for vendor in sorted(placement.grants)
        for grants in placement.grants[vendor]
        if grants
    )
    return Shape(slices, alone)


@dataclass(slots=True)
class _Waiter:
    uid: str
    shape: Shape
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    in_hand: dict[str, tuple[Shape, float]] = field(default_factory=dict)
    """uid -> shape and when it is forgotten"""
    waiting: list[_Waiter] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not self.in_hand and not self.waiting


class Handover:
    """The turns of all nodes. Used from the event loop only."""

    def __init__(self, *, forget_after: float, time: Callable[[], float]) -> None:
        self._forget_after = forget_after
        self._time = time
        self._queues: dict[str, _Queue] = {}
        self._nodes: dict[str, str] = {}
        """uid -> node, of pods in hand"""
        self._forgotten: set[str] = set()
        """uids whose turn took too long: it is not given again for the same binding"""

    @property
    def in_hand(self) -> int:
        return sum(len(queue.in_hand) for queue in self._queues.values())

    @property
    def waiting(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def holders(self, node: str) -> set[str]:
        """The uids whose turn it is on a node."""
        queue = self._queues.get(node)
        return set(queue.in_hand) if queue is not None else set()

    async def turn(self, node: str, uid: str, shape: Shape, *, timeout: float, at_once: bool = False) -> bool:
        """Wait for the turn; False where it did not come in time. The turn lasts until `over`.

        A pod has one turn: asked for on the same node again it still has it, on another node the old one ends.
        `at_once` is for pods that those before them wait for.
        """
        if self._nodes.get(uid) == node:
            return True
        self.over(uid)
        if at_once:
            self._take(node, uid, shape)
            return True
        queue = self._queues.setdefault(node, _Queue())
        waiter = _Waiter(uid, shape, asyncio.get_running_loop().create_future())
        queue.waiting.append(waiter)
        self._advance(node)
        try:
            async with asyncio.timeout(timeout):
                await waiter.turn
        except TimeoutError:
            return waiter.turn.done() and not waiter.turn.cancelled()
        except asyncio.CancelledError:
            self.over(uid)
            raise
        finally:
            if waiter in queue.waiting:
                queue.waiting.remove(waiter)
                self._advance(node)
        return True

    def resume(self, node: str, uid: str, shape: Shape) -> None:
        """A pod that an earlier process bound and whose handover is not over."""
        if uid not in self._nodes and uid not in self._forgotten:
            self._take(node, uid, shape)

    def over(self, uid: str) -> bool:
        """The handover ended: success, failure, or the pod is gone."""
        self._forgotten.discard(uid)
        node = self._nodes.pop(uid, None)
        if node is None:
            return False
        self._queues[node].in_hand.pop(uid, None)
        self._advance(node)
        return True

    def forget_old(self) -> list[str]:
        """End turns that no agent ever ended; their uids."""
        now = self._time()
        old = [uid for q in self._queues.values() for uid, (_, until) in q.in_hand.items() if until <= now]
        for uid in sorted(old):
            self.over(uid)
        self._forgotten.update(old)
        return sorted(old)

    def _take(self, node: str, uid: str, shape: Shape) -> None:
        queue = self._queues.setdefault(node, _Queue())
        queue.in_hand[uid] = (shape, self._time() + self._forget_after)
        self._nodes[uid] = node

    def _advance(self, node: str) -> None:
        """Give the turn to every waiter that conflicts with nobody before it."""
        queue = self._queues[node]
        before = [(uid, shape) for uid, (shape, _) in queue.in_hand.items()]
        still: list[_Waiter] = []
        for waiter in queue.waiting:
            if waiter.turn.done():
                continue
            if any(uid != waiter.uid and waiter.shape.conflicts(shape) for uid, shape in before):
                still.append(waiter)
            else:
                self._take(node, waiter.uid, waiter.shape)
                waiter.turn.set_result(None)
            before.append((waiter.uid, waiter.shape))
        queue.waiting = still
        if queue.idle:
            del self._queues[node]
