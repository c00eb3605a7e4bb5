"""HAMi's per-card metrics for the whole cluster, without stalling the event loop.

Every node's lines are kept as text and written anew only when the node's column in the ledger's arrays changed. Work is
done in small pieces with a turn of the loop in between. All lines about one node in one answer are of the same moment;
those of different nodes may be some milliseconds apart. Only cards that a node has registered have series, and slices
of those: what is held of others changes nothing that the ledger logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from io import BytesIO
from typing import Any

from tessera.core.ledger.holdings import PodFacts
from tessera.core.ledger.ledger import Ledger
from tessera.scheduler.engine_view import ClaimUsers
from tessera.scheduler.metrics import hami_series
from tessera.scheduler.metrics.hami_series import LEGACY_QUOTAS, QUOTAS, quota_samples
from tessera.services.exposition import Series
from tessera.wire.errors import WireError
from tessera.wire.pod_devices import MigAllocation, decode_mig_allocations

RENDER_BYTES = 64 * 1024
"""text written between two turns of the loop: below a millisecond"""
JOIN_BYTES = 64 * 1024
"""text copied between two turns of the loop: well below a millisecond"""

Blocks = tuple[bytes, ...]
"""a node's lines, one entry a family"""


class Exposition:
    """The series about one ledger."""

    def __init__(self, ledger: Ledger, *, legacy: bool = False, users_of: ClaimUsers | None = None) -> None:
        """`users_of` says which pods use what claims hold."""
        self._ledger = ledger
        self._users_of = users_of
        self.instances = MigInstances(self.touch)
        """to be told the MIG annotation of every pod"""
        self._cards = hami_series.CARDS + (hami_series.LEGACY_CARDS if legacy else ())
        self._mig = hami_series.INSTANCES + (hami_series.LEGACY_INSTANCES if legacy else ())
        self._slices = hami_series.SLICES + (hami_series.LEGACY_SLICES if legacy else ())
        self._quotas = QUOTAS + (LEGACY_QUOTAS if legacy else ())
        self._blocks: dict[str, Blocks] = {}
        self._stale: set[str] = set()
        self._position = -1
        """place in the log of the arrays; before its start at first, so that everything is new"""
        self._epoch = -1

    def touch(self, node: str) -> None:
        """Something about the node changed that the ledger does not log."""
        if node in self._blocks:
            self._stale.add(node)

    async def render(self) -> bytes:
        """The whole text."""
        # Grows in place, where joining a list at the end would copy everything in one go.
        text = BytesIO()
        async for chunk in self.stream():
            text.write(chunk)
        return text.getvalue()

    async def stream(self) -> AsyncIterator[bytes]:
        """The whole text in pieces, with a turn of the loop between them."""
        await self._refresh()
        nodes = [blocks for blocks in map(self._blocks.get, self._ledger.arrays.order.names) if blocks is not None]
        families: tuple[Series[Any], ...] = (*self._cards, *self._mig, *self._slices)
        quotas = [
            (series, series.lines(quota_samples(self._ledger.quotas, self._ledger.rules))) for series in self._quotas
        ]
        for place, series in enumerate(families):
            header = series.header
            for chunk in _chunks(blocks[place] for blocks in nodes):
                yield header + chunk
                header = b""
                await asyncio.sleep(0)
        for series, lines in quotas:
            if lines:
                yield series.header + lines

    async def _refresh(self) -> None:
        """Write anew what changed; afterwards, without a further await, every block is no older than the call."""
        self._note_changes()
        written = 0
        while self._stale:
            # Taken and written in one turn: several scrapes at a time share the work.
            written += self._write(self._stale.pop())
            if written >= RENDER_BYTES:
                written = 0
                await asyncio.sleep(0)

    def _note_changes(self) -> None:
        arrays = self._ledger.arrays
        if arrays.epoch != self._epoch:
            names = {name for name in arrays.names if name}
            for gone in self._blocks.keys() - names:
                del self._blocks[gone]
                self._stale.discard(gone)
            self._stale |= names - self._blocks.keys()
        rows = arrays.changed_since(self._position)
        changed: Iterable[str] = arrays.names if rows is None else (arrays.names[row] for row in rows)
        self._stale.update(name for name in changed if name)
        self._position, self._epoch = arrays.now, arrays.epoch

    def _write(self, name: str) -> int:
        """One node's text; how long it is."""
        view = self._ledger.node(name)
        if view is None:
            self._blocks.pop(name, None)
            return 0
        cards = hami_series.card_samples(view)
        slices = hami_series.slice_samples(view, self._holders(name))
        instances = hami_series.instance_samples(cards, self.instances.on(name))
        self._blocks[name] = blocks = (
            *(series.lines(cards) for series in self._cards),
            *(series.lines(instances) for series in self._mig),
            *(series.lines(slices) for series in self._slices),
        )
        return sum(map(len, blocks))

    def _holders(self, name: str) -> Iterator[PodFacts]:
        """What pods hold on a node. What a claim holds is shown as held by each pod that uses it."""
        for entry in self._ledger.pods_on(name):
            facts = entry.facts
            users = self._users_of(facts) if self._users_of is not None else None
            if users is None:
                yield facts
            else:
                yield from (facts._replace(name=user.name, uid=user.uid) for user in users)


def _chunks(blocks: Iterable[bytes]) -> Iterable[bytes]:
    """The same text in pieces of about `JOIN_BYTES`, none of them empty."""
    piece: list[bytes] = []
    size = 0
    for block in blocks:
        if block:
            piece.append(block)
            size += len(block)
            if size >= JOIN_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
    if piece:
        yield b"".join(piece)


class MigInstances:
    """MIG instances that exist, by node: what agents add to a pod's reservations once Allocate has made the instance.

    Only metrics want to know them: the ledger counts an instance from its reservation. It is fed with the annotation of
    every pod that is seen, and tells `on_change` the node whose instances are others now.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._pods: dict[str, tuple[str, str]] = {}
        """uid -> node and text"""
        self._nodes: dict[str, dict[str, tuple[MigAllocation, ...]]] = {}

    def put(self, uid: str, *, node: str, text: str) -> None:
        """A pod on a node with this annotation; an empty text has no instances."""
        if self._pods.get(uid, ("", "")) == (node if text else "", text):
            return
        self.drop(uid)
        if not text:
            return
        self._pods[uid] = (node, text)
        try:
            found = tuple(one for one in decode_mig_allocations(text) if one.mig_uuid is not None)
        except WireError:
            found = ()  # the pod informer reports it and blocks the node
        if found:
            self._nodes.setdefault(node, {})[uid] = found
            self._on_change(node)

    def drop(self, uid: str) -> None:
        """The pod is gone or has ended."""
        node, _ = self._pods.pop(uid, ("", ""))
        of_node = self._nodes.get(node, {})
        if of_node.pop(uid, None) is not None:
            if not of_node:
                del self._nodes[node]
            self._on_change(node)

    def on(self, node: str) -> list[MigAllocation]:
        """In order of pods."""
        return [one for _, found in sorted(self._nodes.get(node, {}).items()) for one in found]
