"""The queue of a node between bind and a pod's last Allocate.

kubelet's Allocate does not say which pod it is for. A pod whose containers take their slices through the downward API
does not care. Every other pod depends on Allocate, and on a node one such pod at a time is handed over:

    issue --> waiting --(nothing ahead blocks it)--> active --> out: handed over, gone, or overdue
                 \\--(bind's time is over: the bind fails and kube-scheduler tries again)

The order is the order of asking, and pods wait inside bind. Downward API pods do not wait for each other. Beside a
dependent pod they wait where a container's device count is the same, because the plugin could not tell the two apart;
but only until that pod's binding is `DOWNWARD_API_WAIT_S` old, so that a stuck pod does not stop the node. Where the
node has a foreign plugin that needs the node lock, an active pod takes it too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from enum import Enum

import structlog

from tessera.core.model.grants import Placement
from tessera.kube.errors import KubeError
from tessera.scheduler.queue.node_lock import HeldLock, LockRefusal, NodeLocks, Owner
from tessera.scheduler.settings import NodeLockMode
from tessera.vendors.base import Vendor
from tessera.wire import keys
from tessera.wire.objects import Node

log = structlog.get_logger(__name__)

DOWNWARD_API_WAIT_S = 10.0
"""seconds: a handover takes milliseconds unless kubelet or the agent is away. The node agent relies on it."""
AGENT_USES_DOWNWARD_API = "env"
"""word in the agent's annotation: containers get their slices from their own pod"""


class TicketState(Enum):
    """Where a ticket is."""

    WAITING = "waiting"
    ACTIVE = "active"
    OUT = "out"


@dataclass(slots=True, eq=False)
class Ticket:
    """A pod's place in the queue of its node, and the node locks that were taken for it."""

    uid: str
    owner: Owner
    node: str
    depends_on_allocate: bool
    device_counts: frozenset[int]
    """of its containers"""
    lock_s: Mapping[str, float] = field(default_factory=dict)
    """the node locks that its plugin needs, in the order of taking them, and the age at which each has expired"""
    since: float = 0.0
    """when it asked, became active, or its binding was written"""
    state: TicketState = TicketState.OUT
    turn: asyncio.Future[None] | None = None
    is_locking: bool = False
    """it is active only to wait for HAMi's node lock"""
    locks: list[HeldLock] = field(default_factory=list)

    def end_wait(self) -> None:
        """Let a bind that waits go on."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)


def blocks(ahead: Ticket, behind: Ticket, now: float) -> bool:
    """Whether an Allocate that is meant for one of them could be taken for the other's. No pod waits for itself."""
    if not (ahead.depends_on_allocate or behind.depends_on_allocate) or ahead.uid == behind.uid:
        return False
    if ahead.depends_on_allocate and behind.depends_on_allocate:
        return True
    is_alike = not ahead.device_counts.isdisjoint(behind.device_counts)
    return is_alike and (behind.depends_on_allocate or now < ahead.since + DOWNWARD_API_WAIT_S)


@dataclass(slots=True)
class _NodeQueue:
    active: dict[Ticket, None] = field(default_factory=dict)
    waiting: list[Ticket] = field(default_factory=list)

    def ahead_of(self, ticket: Ticket) -> list[Ticket]:
        position = self.waiting.index(ticket) if ticket in self.waiting else len(self.waiting)
        return [*self.active, *self.waiting[:position]]

    def is_free_for(self, ticket: Ticket, now: float) -> bool:
        return not any(blocks(each, ticket, now) for each in self.ahead_of(ticket))


class AllocationQueue:
    """The queues of all nodes. Used from the event loop only."""

    def __init__(
        self,
        locks: NodeLocks,
        vendors: Mapping[str, Vendor],
        *,
        mode: NodeLockMode,
        turn_s: float,
        lock_s: float,
        time: Callable[[], float],
    ) -> None:
        """`turn_s`: longest wait inside bind. `lock_s`: after which a node lock has expired, unless it has
        a time of its own, and a pod's turn ends by itself."""
        self._locks = locks
        self._vendors = vendors
        self._mode = mode
        self._turn_s = turn_s
        self._lock_s = lock_s
        self._time = time
        self._agents: dict[str, frozenset[str]] = {}
        """by node: what its agent, if it is ours, says about itself"""
        self._queues: dict[str, _NodeQueue] = {}

    @property
    def active(self) -> int:
        return sum(len(queue.active) for queue in self._queues.values())

    @property
    def waiting(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def active_on(self, node: str) -> list[Ticket]:
        queue = self._queues.get(node)
        return list(queue.active) if queue is not None else []

    def observe_node(self, node: Node) -> None:
        """The API shows a node: its agent and its lock may have changed."""
        text = node.annotations.get(keys.AGENT)
        if text is None:
            self._agents.pop(node.name, None)
        else:
            self._agents[node.name] = frozenset(text.replace(",", " ").split())
        self._locks.observe_node(node)

    def forget_node(self, name: str) -> None:
        """The node is gone. Pods that are bound to it stay active until they are gone themselves."""
        self._agents.pop(name, None)
        self._locks.forget_node(name)

    # -- who needs a turn

    def needs_lock(self, placement: Placement) -> bool:
        if self._mode is not NodeLockMode.AUTO:
            return self._mode is NodeLockMode.ALWAYS
        return placement.node not in self._agents and self._has_lock(placement)

    def depends_on_allocate(self, placement: Placement, *, uses_downward_api: bool) -> bool:
        """Whether the pod gets its slices from Allocate's answer, and from a plugin that says when it is done."""
        agent = self._agents.get(placement.node)
        if agent is None:
            return self.needs_lock(placement) or self._has_lock(placement)
        return not (uses_downward_api and AGENT_USES_DOWNWARD_API in agent) or self.needs_lock(placement)

    def issue(self, uid: str, owner: Owner, placement: Placement, *, uses_downward_api: bool) -> Ticket | None:
        """A ticket for a pod that is about to be bound; None if no plugin of its node says when it is done."""
        depends = self.depends_on_allocate(placement, uses_downward_api=uses_downward_api)
        if not depends and placement.node not in self._agents:
            return None
        counts = {len(grants) for containers in placement.grants.values() for grants in containers if grants}
        locks = self._locks_of(placement) if depends and self.needs_lock(placement) else {}
        return Ticket(uid, owner, placement.node, depends, frozenset(counts), locks)

    # -- entering

    async def enter(self, ticket: Ticket) -> str:
        """Wait for the turn and for the node locks; empty, or why they could not be had in time.

        A bind that fails or is cancelled gives back what it has by now with `give_back`.
        """
        deadline = self._time() + self._turn_s
        if ticket.state is not TicketState.ACTIVE and not await self._take_turn(ticket, deadline):
            return f"node {ticket.node} is still handing devices to another pod"
        if ticket.state is TicketState.OUT:
            return ""  # The pod was deleted or bound meanwhile, which the bind sees itself.
        for key, expire_after in ticket.lock_s.items():
            if any(held.key == key for held in ticket.locks):
                continue
            ticket.is_locking = key == keys.NODE_LOCK
            try:
                answer = await self._locks.acquire(
                    ticket.node, key, ticket.owner, expire_after=expire_after, timeout=deadline - self._time()
                )
            finally:
                ticket.is_locking = False
            if isinstance(answer, LockRefusal):
                return answer.text
            # Even if the pod is gone by now: then the bind finds out, and gives the lock back.
            ticket.locks.append(answer)
        return ""

    def enter_at_once(self, ticket: Ticket) -> None:
        """The API shows the pod bound and not handed over yet. A bind that waits goes on."""
        if ticket.state is TicketState.WAITING:
            self._queues[ticket.node].waiting.remove(ticket)
        self._activate(ticket)
        ticket.end_wait()

    def restart_clock(self, ticket: Ticket) -> None:
        """The binding is written: from now on the plugin can hand over."""
        if ticket.state is TicketState.ACTIVE:
            ticket.since = self._time()

    async def _take_turn(self, ticket: Ticket, deadline: float) -> bool:
        ticket.since = self._time()
        queue = self._queues.get(ticket.node)
        if queue is None or queue.is_free_for(ticket, ticket.since) or self._is_waited_for(ticket):
            self._activate(ticket)
            return True
        turn = ticket.turn = asyncio.get_running_loop().create_future()
        ticket.state = TicketState.WAITING
        queue.waiting.append(ticket)
        try:
            while not turn.done() and self._time() < deadline:
                await asyncio.wait([turn], timeout=self._next_look(queue, ticket, deadline) - self._time())
                if not turn.done():
                    self._advance(ticket.node)
            return ticket.state is not TicketState.WAITING
        finally:
            ticket.turn = None
            if ticket.state is TicketState.WAITING:
                self.leave(ticket)

    def _next_look(self, queue: _NodeQueue, ticket: Ticket, deadline: float) -> float:
        """When time alone may end the wait."""
        if ticket.depends_on_allocate:
            return deadline
        now = self._time()
        overdue = [each.since + DOWNWARD_API_WAIT_S for each in queue.ahead_of(ticket)]
        return min([deadline, *(moment for moment in overdue if moment > now)])

    def _is_waited_for(self, ticket: Ticket) -> bool:
        """An earlier process took the lock for this pod, and all active pods only wait for that lock."""
        return self._locks.owner(ticket.node) == ticket.owner and all(
            each.is_locking for each in self._queues[ticket.node].active
        )

    # -- leaving

    def leave(self, ticket: Ticket) -> None:
        """The pod is handed over, or gone. The plugin removes its locks itself; a bind that waits goes on."""
        ticket.locks.clear()
        queue = self._queues.get(ticket.node)
        state, ticket.state = ticket.state, TicketState.OUT
        if queue is None or state is TicketState.OUT:
            return
        if state is TicketState.ACTIVE:
            del queue.active[ticket]
        else:
            queue.waiting.remove(ticket)
            ticket.end_wait()
        self._advance(ticket.node)

    async def give_back(self, ticket: Ticket) -> None:
        """The bind failed: remove the locks, then leave. A lock that cannot be removed is left to its expiry."""
        try:
            while ticket.locks:
                held = ticket.locks.pop()
                try:
                    await self._locks.release(held)
                except KubeError as error:
                    log.warning("node lock not released", node=held.node, key=held.key, error=str(error))
        finally:
            # Last, so that the next pod finds the lock gone.
            self.leave(ticket)

    def end_overdue(self, *, binding: Container[str] = ()) -> None:
        """End turns that no plugin ever ended; their locks have expired. A bind that runs ends its turn itself."""
        now = self._time()
        for ticket in [each for queue in self._queues.values() for each in queue.active]:
            longest = max(ticket.lock_s.values(), default=self._lock_s)
            if ticket.since + longest <= now and ticket.uid not in binding:
                self.leave(ticket)

    # -- inside

    def _activate(self, ticket: Ticket) -> None:
        ticket.state, ticket.since = TicketState.ACTIVE, self._time()
        self._queues.setdefault(ticket.node, _NodeQueue()).active[ticket] = None

    def _advance(self, node: str) -> None:
        """Activate every waiting ticket that nothing ahead blocks."""
        queue, now = self._queues[node], self._time()
        # The first dependent pod blocks all later ones, so that most are judged by one look.
        ahead = deque(sorted(queue.active, key=lambda each: not each.depends_on_allocate))
        candidates, queue.waiting = queue.waiting, []
        for ticket in candidates:
            if any(blocks(each, ticket, now) for each in ahead):
                queue.waiting.append(ticket)
            else:
                self._activate(ticket)
                ticket.end_wait()
            (ahead.appendleft if ticket.depends_on_allocate else ahead.append)(ticket)
        if not queue.active and not queue.waiting:
            del self._queues[node]

    def _has_lock(self, placement: Placement) -> bool:
        return any(vendor.keys.lock for vendor in self._vendors_of(placement))

    def _locks_of(self, placement: Placement) -> dict[str, float]:
        """One per vendor, sorted by key; HAMi's common one for a vendor without its own."""
        needed = {each.keys.lock or keys.NODE_LOCK: each.keys.lock_s for each in self._vendors_of(placement)}
        return {key: self._lock_s if own is None else own for key, own in sorted(needed.items())}

    def _vendors_of(self, placement: Placement) -> list[Vendor]:
        """Without those that left the configuration since the pod was placed: the bind finds their cards gone."""
        return [self._vendors[key] for key in placement.grants if key in self._vendors]
