"""Turns between bind and the end of a pod's last Allocate.

kubelet's Allocate does not say which pod it is for. Where the answer itself must be right (a dependent pod), pods of
one node that the agent could mix up go one after the other. Pods that carry their slices need no turn among themselves:

    ask ----> waiting ----(no conflict with pods in hand or earlier waiters)----> in hand ----> over
                 \\                                                     success, failed, gone or forgotten
                  +--(waited too long: the bind fails and is tried again)

The order is the order of asking. Waiting is inside bind, which costs no other pod anything. A pod that carries its
slices waits for dependent ones a few seconds at most, so that one that is stuck holds up nobody for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.core.devices import MigSlot
from tessera.core.grants import Placement

CARRIED_WAITS_S = 10.0
"""seconds: a handover takes milliseconds, unless kubelet or the agent is away. The agent counts on it (`OVERDUE_S`)"""

Slice = tuple[str, int, int, MigSlot | None]
"""uuid, memory, cores, and the instance where the card is cut into some"""


class Shape(NamedTuple):
    """What Allocate calls of a pod look like from outside."""

    slices: tuple[tuple[Slice, ...], ...]
    """by container, only those that get devices"""
    alone: bool = False
    """True where the plugin hands over one pod at a time, or the pod gets what no other of its shape does"""
    carried: bool = False
    """True where the pod's containers find their slices in the pod itself, whatever Allocate answers"""
    inits: frozenset[int] = frozenset()
    """which of these containers are init containers: kubelet does not show to the agent what those hold"""

    @property
    def is_independent(self) -> bool:
        """It conflicts with none that is so too."""
        return self.carried and not self.alone

    def conflicts(self, other: Shape) -> bool:
        """Whether an Allocate call could be meant for either pod and it matters which."""
        if self.alone or other.alone:
            return True
        if self.carried and other.carried:
            return False
        # Beside one that carries its slices, an answer tells nothing: it would count as the dependent pod's own.
        if (self.slices, self.inits, self.carried) == (other.slices, other.inits, other.carried):
            return False
        return not {len(s) for s in self.slices}.isdisjoint(len(s) for s in other.slices)


def shape_of(placement: Placement, *, inits: Collection[int] = (), alone: bool = False, carried: bool = False) -> Shape:
    """The shape of a placement's handover, over all vendors; `inits` are positions of init containers."""
    given: list[tuple[Slice, ...]] = []
    first = set()
    for vendor in sorted(placement.grants):
        for position, grants in enumerate(placement.grants[vendor]):
            if grants:
                if position in inits:
                    first.add(len(given))
                given.append(tuple([(grant.uuid, grant.memory, grant.cores, grant.mig) for grant in grants]))
    return Shape(tuple(given), alone, carried, frozenset(first))


@dataclass(slots=True)
class _Pod:
    uid: str
    shape: Shape
    since: float
    """when it asked, or began to be handed over"""

    def is_in_the_way_of(self, other: _Pod, now: float) -> bool:
        if self.uid == other.uid or not self.shape.conflicts(other.shape):
            return False
        return not other.shape.carried or now < self.since + CARRIED_WAITS_S


@dataclass(slots=True)
class _Waiter:
    pod: _Pod
    turn: asyncio.Future[None]


@dataclass(slots=True)
class _Queue:
    in_hand: dict[str, _Pod] = field(default_factory=dict)
    waiting: list[_Waiter] = field(default_factory=list)
    dependent: set[str] = field(default_factory=set)
    """uids of those in hand that pods which carry their slices may have to wait for"""

    @property
    def idle(self) -> bool:
        return not self.in_hand and not self.waiting

    def is_free_for(self, pod: _Pod) -> bool:
        """Whether nobody is in its way. Where nobody is dependent, nobody is looked at: nodes have many pods."""
        if pod.shape.is_independent and not self.dependent and not self.waiting:
            return True
        return not any(each.is_in_the_way_of(pod, pod.since) for each in self.before(pod))

    def before(self, pod: _Pod) -> list[_Pod]:
        """In hand, or waiting since before it."""
        waiting = [waiter.pod for waiter in self.waiting]
        return [*self.in_hand.values(), *(waiting[: waiting.index(pod)] if pod in waiting else waiting)]


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

    def has_turn(self, node: str, uid: str) -> bool:
        queue = self._queues.get(node)
        return queue is not None and uid in queue.in_hand

    async def turn(self, node: str, uid: str, shape: Shape, *, timeout: float, at_once: bool = False) -> bool:
        """Wait for the turn; False where it did not come in time. The turn lasts until `over`.

        A pod has one turn: asked for on the same node again it still has it, on another node the old one ends.
        `at_once` is for pods that those before them wait for. A pod that carries its slices gets it in any case.
        """
        if self._nodes.get(uid) == node:
            return True
        self.over(uid)
        pod = _Pod(uid, shape, self._time())
        queue = self._queues.get(node)
        if at_once or queue is None or queue.is_free_for(pod):
            self._take(node, pod)
            return True
        waiter = _Waiter(pod, asyncio.get_running_loop().create_future())
        queue.waiting.append(waiter)
        deadline = pod.since + timeout
        try:
            while not waiter.turn.done() and self._time() < deadline:
                patience = [each.since + CARRIED_WAITS_S for each in queue.before(pod)] if shape.carried else []
                until = min((each for each in patience if each > self._time()), default=deadline)
                await asyncio.wait([waiter.turn], timeout=min(until, deadline) - self._time())
                if not waiter.turn.done():
                    self._advance(node)
            if shape.carried and not waiter.turn.done():
                self._take(node, _Pod(uid, shape, self._time()))
            return shape.carried or waiter.turn.done()
        except asyncio.CancelledError:
            self.over(uid)
            raise
        finally:
            if waiter in queue.waiting:
                queue.waiting.remove(waiter)
                self._advance(node)

    def begun(self, uid: str) -> None:
        """The binding is written: from now on the agent can hand over."""
        node = self._nodes.get(uid)
        if node is not None:
            self._queues[node].in_hand[uid].since = self._time()

    def resume(self, node: str, uid: str, shape: Shape) -> None:
        """A pod that an earlier process bound and whose handover is not over."""
        if uid not in self._nodes and uid not in self._forgotten:
            self._take(node, _Pod(uid, shape, self._time()))

    def over(self, uid: str) -> bool:
        """The handover ended: success, failure, or the pod is gone."""
        self._forgotten.discard(uid)
        node = self._nodes.pop(uid, None)
        if node is None:
            return False
        self._queues[node].in_hand.pop(uid, None)
        self._queues[node].dependent.discard(uid)
        self._advance(node)
        return True

    def forget_old(self) -> list[str]:
        """End turns that no agent ever ended; their uids."""
        now = self._time()
        since = now - self._forget_after
        old = [uid for queue in self._queues.values() for uid, pod in queue.in_hand.items() if pod.since <= since]
        for uid in sorted(old):
            self.over(uid)
        self._forgotten.update(old)
        return sorted(old)

    def _take(self, node: str, pod: _Pod) -> None:
        queue = self._queues.get(node)
        if queue is None:
            queue = self._queues[node] = _Queue()
        queue.in_hand[pod.uid] = pod
        if not pod.shape.is_independent:
            queue.dependent.add(pod.uid)
        self._nodes[pod.uid] = node

    def _advance(self, node: str) -> None:
        """Give the turn to every waiter that conflicts with nobody before it."""
        queue = self._queues[node]
        before, now = list(queue.in_hand.values()), self._time()
        still: list[_Waiter] = []
        for waiter in queue.waiting:
            if waiter.turn.done():
                continue
            if any(each.is_in_the_way_of(waiter.pod, now) for each in before):
                still.append(waiter)
            else:
                waiter.pod.since = now
                self._take(node, waiter.pod)
                waiter.turn.set_result(None)
            before.append(waiter.pod)
        queue.waiting = still
        if queue.idle:
            del self._queues[node]
