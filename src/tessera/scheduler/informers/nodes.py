"""Which cards of which nodes exist: the handler of the node informer, with the health rules of the plugins.

    registration readable, plugin alive      cards are in the ledger
    handshake asked > 60 s ago, no answer,
      and nothing allocatable                that vendor's cards leave the ledger until the plugin reports again
    no handshake, allocatable shown as 0     the same, at once
    node gone, or outside the selector       the node leaves the ledger

Only nodes with cards whose plugin speaks the handshake are ever patched; all others cost no API call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from tessera.core.ledger.ledger import Ledger
from tessera.core.model.devices import NodeFacts
from tessera.scheduler.clock import Clock
from tessera.scheduler.informers.handler import InformerHandler
from tessera.vendors.base import Vendor
from tessera.vendors.node_reader import node_facts
from tessera.wire.objects import Node
from tessera.wire.quantity import NotAQuantity, NotWhole, Whole, read
from tessera.wire.registration import Reported, Requesting, decode_handshake, encode_requesting

log = structlog.get_logger(__name__)

ANSWER_WITHIN = timedelta(seconds=60)
"""how long a plugin may take to answer a handshake, as HAMi has it"""

Patch = dict[str, str]
"""annotations to set on a node"""


class NodeListener(Protocol):
    """What the node informer tells about nodes."""

    def on_node(self, node: Node) -> None:
        """The API shows a node that is ours."""
        ...

    def on_node_gone(self, name: str) -> None:
        """The node was deleted, or is no longer ours."""
        ...

    def on_cards(self, name: str) -> None:
        """The node's cards may be others in the ledger now, or gone."""
        ...

    def on_handshake(self, node: Node, annotations: Patch) -> None:
        """Stamps are to be written to the node."""
        ...

    def on_room(self) -> None:
        """Capacity was added."""
        ...

    def on_synced(self) -> None:
        """The first list is complete."""
        ...


class NodeInformer(InformerHandler[Node]):
    """Handler of the node informer."""

    def __init__(
        self,
        ledger: Ledger,
        vendors: Mapping[str, Vendor],
        *,
        joins: Sequence[Callable[[NodeFacts], NodeFacts]],
        selector: Mapping[str, str],
        clock: Clock,
        listener: NodeListener,
    ) -> None:
        super().__init__(listener.on_synced)
        self._ledger = ledger
        self._vendors = vendors
        self._joins = joins
        self._selector = selector
        self._clock = clock
        self._listener = listener
        self._asked: dict[str, Node] = {}
        """nodes whose handshake waits for an answer, the plugin's or ours: only time changes what they mean"""
        self._answers: dict[str, dict[str, tuple[str, float]]] = {}
        """by node and handshake: how it was first seen, and until when it may be answered, on the monotonic clock"""
        self._registered: dict[str, NodeFacts] = {}
        """as the nodes themselves say; the ledger's view also knows what their pods make of it"""

    def put(self, key: str, node: Node) -> None:
        if not all(node.labels.get(label) == value for label, value in self._selector.items()):
            self.drop(key)
            return
        self._listener.on_node(node)
        self._register(node)

    def drop(self, key: str) -> None:
        self._asked.pop(key, None)
        self._answers.pop(key, None)
        self._forget(key)
        self._listener.on_node_gone(key)

    def refresh(self, name: str) -> None:
        """What else is known of the node's cards has changed."""
        known = self._registered.get(name)
        if known is not None:
            self._ledger.observe_node(self._join(known))
            self._listener.on_cards(name)
            self._listener.on_room()

    def tick(self) -> None:
        """Look again at nodes whose handshake runs; called every 15 s, and when this replica begins to decide."""
        for node in list(self._asked.values()):
            self._register(node)

    def _register(self, node: Node) -> None:
        self._asked.pop(node.name, None)
        alive = {key: vendor for key, vendor in self._vendors.items() if self._is_alive(node, vendor)}
        facts = node_facts(node, alive)
        known = self._registered.get(node.name)
        if known is not None and known.devices and not facts.devices:
            log.warning("node lost its cards", node=node.name, problem=facts.problem)
        if facts.problem and (known is None or known.problem != facts.problem):
            log.warning("registration cannot be read", node=node.name, problem=facts.problem)
        if facts.devices or facts.problem:
            self._registered[node.name] = facts
            self._ledger.observe_node(self._join(facts))
            self._listener.on_cards(node.name)
            self._shake_hands(node, {device.vendor for device in facts.devices})
            if known != facts:
                self._listener.on_room()
        else:
            self._forget(node.name)

    def _join(self, facts: NodeFacts) -> NodeFacts:
        for join in self._joins:
            facts = join(facts)
        return facts

    def _forget(self, name: str) -> None:
        self._registered.pop(name, None)
        self._ledger.forget_node(name)
        self._listener.on_cards(name)

    def _is_alive(self, node: Node, vendor: Vendor) -> bool:
        """Whether a vendor's plugin still stands behind its registration."""
        if not vendor.keys.handshake or vendor.keys.register not in node.annotations:
            return True
        allocatable = _whole(node.allocatable.get(vendor.names.count))
        said = node.annotations.get(vendor.keys.handshake)
        match decode_handshake(said, zone=self._clock.zone):
            case Requesting(time):
                if time is None:
                    return True
                asked_lately = self._may_answer(node.name, vendor.keys.handshake, said or "", time)
                if asked_lately:
                    self._asked[node.name] = node
                return asked_lately or (allocatable or 0) > 0
            case None:
                # Plugins that do not shake hands say it through kubelet: 0 after having had devices.
                return allocatable != 0
            case Reported():
                return True

    def _may_answer(self, node: str, handshake: str, said: str, asked: datetime) -> bool:
        """Whether a plugin has time left. How much is read once: a wall clock that is set does not change it."""
        known, now = self._answers.setdefault(node, {}), self._clock.monotonic()
        if handshake not in known or known[handshake][0] != said:
            left = min(asked + ANSWER_WITHIN - self._time(), ANSWER_WITHIN)
            known[handshake] = said, now + left.total_seconds()
        return now < known[handshake][1]

    def _shake_hands(self, node: Node, vendors: set[str]) -> None:
        """Answer plugins that reported: the stamp tells them that their registration was read."""
        stamps: Patch = {}
        for key in sorted(vendors):
            handshake = self._vendors[key].keys.handshake
            said = node.annotations.get(handshake) if handshake else None
            if isinstance(decode_handshake(said, zone=self._clock.zone), Reported):
                stamps[handshake] = encode_requesting(self._time(), zone=self._clock.zone)
        if stamps:
            self._asked[node.name] = node
            self._listener.on_handshake(node, stamps)

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)


def _whole(text: str | int | float | None) -> int | None:
    """A whole quantity; None where there is none."""
    if text is None:
        return None
    match read(text):
        case Whole(value):
            return value
        case NotWhole() | NotAQuantity():
            return None
