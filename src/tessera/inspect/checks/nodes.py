"""Do the plugins on the nodes stand behind what they registered, and does nobody else serve the same resource?"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

import msgspec

from tessera.core.devices import MIG
from tessera.inspect.checks.findings import Finding, broken, fine, warning
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.scheduler.node_informer import ANSWER_WITHIN
from tessera.vendors.base import Vendor
from tessera.vendors.node_reader import node_facts
from tessera.vendors.nvidia import Nvidia
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.handshake import Deleted, Requesting, decode_handshake
from tessera.wire.node_lock import decode_node_lock
from tessera.wire.objects import Node
from tessera.wire.quantity import Whole, read

AREA = "nodes"
OLD_LOCK = timedelta(minutes=5)
"""as the scheduler takes a lock for forgotten"""


def check_nodes(world: OfflineCluster) -> Iterator[Finding]:
    registered = 0
    for name, document in sorted(world.nodes.items()):
        node = msgspec.convert(document, Node)
        facts = node_facts(node, world.vendors)
        registered += bool(facts.devices)
        if facts.problem:
            yield broken(
                AREA,
                f"{name}: its registration cannot be read: {facts.problem}",
                why="unknown is never taken for free: the node gets no new pods",
                fix="restart the device plugin on that node; if it stays, its version is not understood",
            )
        for vendor in world.vendors.values():
            yield from _vendor(world, node, vendor)
        if facts.devices and not _is_ready(document):
            yield warning(
                AREA,
                f"{name} is not ready",
                why="its cards are counted, but kube-scheduler puts nothing there",
                fix=f"kubectl describe node {name}",
            )
        yield from _lock(world, node)
    if registered:
        yield fine(AREA, f"{registered} of {len(world.nodes)} node(s) have registered cards")
    else:
        yield broken(
            AREA,
            f"none of {len(world.nodes)} nodes has registered cards",
            why="no device pod can be placed",
            fix="see that the device plugin runs on them: kubectl get daemonsets,pods -A | grep device-plugin",
        )


def _vendor(world: OfflineCluster, node: Node, vendor: Vendor) -> Iterator[Finding]:
    count = vendor.names.count
    offered = _amount(node, count) if count else 0
    has_registration = bool(vendor.keys.register) and bool(node.annotations.get(vendor.keys.register))
    if not has_registration:
        if offered and vendor.keys.register:
            yield warning(
                AREA,
                f"{node.name} offers {offered} {count}, but no plugin of Tessera or HAMi has registered its cards",
                why="another device plugin serves that resource: pods placed there get whole cards, unseen by Tessera",
                fix=f"keep the other plugin off that node, or give it another resource name than {count}",
            )
        return
    view = world.ledger.node(node.name)
    cards = view.of_vendor(vendor.key) if view is not None else []
    handshake = decode_handshake(
        node.annotations.get(vendor.keys.handshake) if vendor.keys.handshake else None, zone=_zone()
    )
    if not cards and (view is None or not view.facts.problem) and not _registers_nothing(node, vendor):
        since = _since(handshake, world.state.taken)
        yield broken(
            AREA,
            f"{node.name}: the plugin of {vendor.key} is gone{since}; its cards have left the ledger",
            why="pods that hold them keep running, but none is added",
            fix="kubectl get pods -A -o wide --field-selector spec.nodeName=" + node.name,
        )
        return
    if isinstance(handshake, Requesting) and keys.AGENT not in node.annotations:
        yield from _unanswered(world, node, vendor, handshake)
    slots = sum(card.device.slots for card in cards if card.device.healthy)
    # Only NVIDIA's plugins are known to offer a device for every slot; with MIG they offer instances.
    counts_slots = vendor.key == Nvidia.key and not any(card.device.mode == MIG for card in cards)
    if cards and offered is not None and offered != slots and counts_slots:
        yield warning(
            AREA,
            f"{node.name}: kubelet offers {offered} {count}, the registration has {slots} slots on healthy cards",
            why="another plugin serves the resource too, or kubelet has lost the plugin: pods may be refused there",
            fix="one device plugin for each resource; restart the plugin if there is one only",
        )


def _unanswered(world: OfflineCluster, node: Node, vendor: Vendor, asked: Requesting) -> Iterator[Finding]:
    """A plugin that is silent, though kubelet still offers its devices."""
    if asked.time is None or _moment(world) < asked.time + ANSWER_WITHIN:
        return
    minutes = int((_moment(world) - asked.time).total_seconds() // 60)
    yield warning(
        AREA,
        f"{node.name}: the plugin of {vendor.key} has not answered the scheduler for {minutes} minutes",
        why="its cards stay, because kubelet still offers them, but changes of their health are not heard",
        fix="restart the device plugin on that node; plugins since HAMi v2.8 no longer answer, and need not",
    )


def _registers_nothing(node: Node, vendor: Vendor) -> bool:
    found = vendor.devices(node)
    return isinstance(found, tuple) and not found


def _since(handshake: object, now: float) -> str:
    if isinstance(handshake, Requesting | Deleted) and handshake.time is not None:
        age = datetime.fromtimestamp(now, UTC) - handshake.time
        seconds = int(age.total_seconds())
        limit = int(ANSWER_WITHIN.total_seconds())
        return f" (asked {seconds} s ago without an answer; {limit} s are allowed)"
    return ""


def _lock(world: OfflineCluster, node: Node) -> Iterator[Finding]:
    for key in dict.fromkeys(vendor.keys.lock for vendor in world.vendors.values() if vendor.keys.lock):
        text = node.annotations.get(key)
        if text is None:
            continue
        try:
            lock = decode_node_lock(text)
        except WireError:
            continue
        age = _moment(world) - lock.time
        if age > OLD_LOCK:
            owner = f" by {'/'.join(lock.owner)}" if lock.owner else ""
            yield warning(
                AREA,
                f"{node.name} is locked{owner} since {int(age.total_seconds() // 60)} minutes ({key})",
                why="with a plugin that needs the lock no other pod is bound there meanwhile",
                fix=f"it is taken over by itself; at once: kubectl annotate node {node.name} {key}-",
            )


def _amount(node: Node, resource: str) -> int | None:
    text = node.allocatable.get(resource)
    if text is None:
        return None
    found = read(text)
    return found.value if isinstance(found, Whole) else None


def _is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


def _moment(world: OfflineCluster) -> datetime:
    return datetime.fromtimestamp(world.state.taken, UTC)


def _zone() -> tzinfo:
    return datetime.now().astimezone().tzinfo or UTC
