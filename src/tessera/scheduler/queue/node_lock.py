"""The node-lock annotation, for nodes whose plugin finds its pod through it.

    free, ours, expired, owner gone or done  take it (optimistic patch on the node's resourceVersion)
    held by another pod                      wait until the node changes, the lock expires, or the time is over

Only the owner releases the lock, and only the exact value that it wrote. Normally the plugin does so when the handover
ends; this process does so when a bind fails. Cambricon's lock is a bare time under its own key, without an owner,
and expires after a time of its own. How old a lock is is read once, when it is first met, and measured from there: a
wall clock that is set neither ends a lock nor makes it last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tessera.kube.errors import ApiError, Unreachable, is_conflict, is_not_found
from tessera.scheduler.kube_api import KubeApi
from tessera.wire.errors import WireError
from tessera.wire.keys import NODE_LOCK
from tessera.wire.objects import Node
from tessera.wire.registration import NodeLock, decode_node_lock, encode_node_lock

CONFLICTS = 5
"""lost races for one lock before a bind gives up"""
LOOK_AGAIN = 5.0
"""seconds after which a waiting bind looks at the node itself, in case the informer lags"""

OVER = frozenset({"Running", "Succeeded", "Failed"})
"""phases of a pod that no longer waits for Allocate; kubelet may refuse a pod before its plugin hears of it"""

Owner = tuple[str, str]
"""namespace and name"""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that was taken."""

    node: str
    key: str
    text: str
    """the annotation's value as it was written or found"""


@dataclass(frozen=True, slots=True)
class LockRefusal:
    """Why a lock was not taken."""

    text: str


class NodeLocks:
    """Takes and releases locks. `observe_node` is told every change of a node."""

    def __init__(self, api: KubeApi, *, now: Callable[[], float], time: Callable[[], float]) -> None:
        """`now` is the wall clock in unix seconds, `time` measures."""
        self._api = api
        self._now = now
        self._clock = time
        self._expiries: dict[str, dict[str, tuple[str, float]]] = {}
        """by node and key: the lock that was met last, and when it expires"""
        self._changes: dict[str, asyncio.Event] = {}
        self._owners: dict[str, Owner] = {}

    def observe_node(self, node: Node) -> None:
        """Wake binds that wait for this node's lock."""
        owner = _owner(node)
        if owner is None:
            self._owners.pop(node.name, None)
        else:
            self._owners[node.name] = owner
        self._wake(node.name)

    def forget_node(self, name: str) -> None:
        """The node is gone: binds that wait for its lock see it at once."""
        self._owners.pop(name, None)
        self._expiries.pop(name, None)
        self._wake(name)

    def owner(self, node: str) -> Owner | None:
        """The pod that holds the node's lock, as the informer last showed it."""
        return self._owners.get(node)

    async def acquire(
        self, node: str, key: str, owner: Owner, *, expire_after: float, timeout: float
    ) -> HeldLock | LockRefusal:
        """Take the lock `key` of a node for a pod. Another pod's lock is in the way until it is `expire_after` old."""
        try:
            async with asyncio.timeout(timeout):
                return await self._acquire(node, key, owner, expire_after)
        except TimeoutError:
            # HAMi's texts, to which the key is added where it is not the common one.
            within = _as_go(expire_after) if key == NODE_LOCK else f"{expire_after / 60:g} minutes ({key})"
            return LockRefusal(f"node {node} has been locked within {within}: node lock contention")

    def _wake(self, node: str) -> None:
        change = self._changes.pop(node, None)
        if change is not None:
            change.set()

    async def _acquire(self, node: str, key: str, owner: Owner, expire_after: float) -> HeldLock | LockRefusal:
        conflicts = 0
        while conflicts < CONFLICTS:
            change = self._changes.setdefault(node, asyncio.Event())
            live = await self._api.get_node(node)
            text = live.annotations.get(key)
            try:
                lock = decode_node_lock(text) if text is not None else None
            except WireError as error:
                return LockRefusal(str(error))
            if text is not None and lock is not None:
                age = (self._time() - lock.time).total_seconds()
                left = self._left(node, key, text, min(expire_after - age, expire_after))
                if left >= 0 and lock.owner == owner:
                    return HeldLock(node, key, text)
                if left >= 0 and not await self._is_abandoned(lock, node):
                    await self._wait_for_change(change, left)
                    continue
            named = owner if key == NODE_LOCK else (None, None)
            value = encode_node_lock(NodeLock(self._time(), *named))
            try:
                await self._api.annotate_node(node, {key: value}, resource_version=live.metadata.resource_version)
            except ApiError as error:
                if not is_conflict(error):
                    return LockRefusal(f"failed to set node lock of {node}: {error}")
                conflicts += 1
            except Unreachable:
                # It may be ours now: reading the node again tells.
                conflicts += 1
            else:
                self._left(node, key, value, expire_after)
                return HeldLock(node, key, value)
        return LockRefusal(f"node {node} is locked: node lock contention")

    async def release(self, held: HeldLock) -> None:
        """Remove the lock, if it is still the one that was taken."""
        for _ in range(CONFLICTS):
            live = await self._api.get_node(held.node)
            if live.annotations.get(held.key) != held.text:
                return
            try:
                version = live.metadata.resource_version
                await self._api.annotate_node(held.node, {held.key: None}, resource_version=version)
            except ApiError as error:
                if not is_conflict(error):
                    raise
            else:
                return

    async def _is_abandoned(self, lock: NodeLock, node: str) -> bool:
        """Whether its pod is gone, elsewhere, or past its last Allocate."""
        if lock.owner is None:
            return False
        try:
            owner = await self._api.get_pod(*lock.owner)
        except ApiError as error:
            if is_not_found(error):
                return True
            raise
        return owner.status.phase in OVER or owner.spec.node_name not in ("", node)

    def _left(self, node: str, key: str, text: str, left: float) -> float:
        """Seconds until a lock expires; `left` if it is met for the first time."""
        known = self._expiries.setdefault(node, {})
        if key not in known or known[key][0] != text:
            known[key] = text, self._clock() + left
        return known[key][1] - self._clock()

    async def _wait_for_change(self, change: asyncio.Event, left: float) -> None:
        """Until the node changes, or the lock has expired, which is `left` seconds from now."""
        try:
            async with asyncio.timeout(min(left + 1.0, LOOK_AGAIN)):
                await change.wait()
        except TimeoutError:
            return

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)


def _owner(node: Node) -> Owner | None:
    try:
        return decode_node_lock(node.annotations[NODE_LOCK]).owner if NODE_LOCK in node.annotations else None
    except WireError:
        return None


def _as_go(span: float) -> str:
    """Whole seconds as Go prints a duration: 5m0s."""
    minutes, seconds = divmod(int(span), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"
