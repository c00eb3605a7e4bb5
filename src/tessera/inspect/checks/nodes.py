"""Checks that the plugins on the nodes are alive and that no other plugin serves the same resources."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

import msgspec

from tessera.core.model.devices import MIG, NodeFacts
from tessera.inspect.checks import Area, Finding, Severity
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import Json
from tessera.scheduler.informers.nodes import ANSWER_WITHIN
from tessera.vendors.base import Vendor
from tessera.vendors.node_reader import node_facts
from tessera.vendors.nvidia import Nvidia
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.objects import Node
from tessera.wire.quantity import Whole, read
from tessera.wire.registration import Requesting, decode_handshake, decode_node_lock

NODES = Area("nodes")
LOCK_S = 300.0
"""after which the scheduler takes over a node lock that has no time of its own"""


def check_nodes(cluster: OfflineCluster) -> Iterator[Finding]:
    registered = 0
    for name, document in sorted(cluster.nodes.items()):
        node = msgspec.convert(document, Node)
        facts = node_facts(node, cluster.vendors)
        registered += bool(facts.devices)
        if facts.problem:
            yield NODES.broken(
                f"{name}: its registration cannot be read: {facts.problem}",
                why="the node gets no new pods: Tessera never treats unknown cards as free",
                fix="restart the device plugin on that node; if that does not help, its version is not supported",
            )
        for vendor in cluster.vendors.values():
            yield from _check_vendor(cluster, node, vendor)
        if facts.devices and not _is_ready(document):
            yield NODES.warning(
                f"{name} is not ready",
                why="its cards are counted, but kube-scheduler places no pods there",
                fix=f"kubectl describe node {name}",
            )
        yield from _check_lock(cluster, node)
        yield from _check_cordon(cluster, facts)
        yield from _check_held(cluster, facts)
    if registered:
        yield NODES.fine(f"{registered} of {len(cluster.nodes)} node(s) have registered cards")
    else:
        yield NODES.broken(
            f"no cards are registered on any of the {len(cluster.nodes)} node(s)",
            why="no device pod can be placed",
            fix="check that the device plugin runs on them: kubectl get daemonsets,pods -A | grep device-plugin",
        )


def unreadable_nodes(cluster: OfflineCluster) -> dict[str, str]:
    """Nodes whose cards are unknown, or not all known, and why."""
    found: dict[str, str] = {}
    for name, document in sorted(cluster.nodes.items()):
        view = cluster.ledger.node(name)
        if view is not None and view.facts.problem:
            found[name] = view.facts.problem
            continue
        node = msgspec.convert(document, Node)
        findings = [each for vendor in cluster.vendors.values() for each in _check_vendor(cluster, node, vendor)]
        reasons = [each.what for each in findings if each.severity is Severity.BROKEN or view is None]
        if reasons:
            is_ours = all(node.labels.get(key) == value for key, value in cluster.settings.node_selector.items())
            outside = "it is outside the scheduler's --node-label-selector"
            found[name] = reasons[0].removeprefix(name).lstrip(": ") if is_ours else outside
    return found


def _check_vendor(cluster: OfflineCluster, node: Node, vendor: Vendor) -> Iterator[Finding]:
    count = vendor.names.count
    offered = _amount(node, count) if count else 0
    has_registration = bool(vendor.keys.register) and bool(node.annotations.get(vendor.keys.register))
    if not has_registration:
        seen = next((key for key in (vendor.keys.handshake, _agent(vendor)) if key and key in node.annotations), "")
        if vendor.keys.register and seen:
            yield _unregistered(cluster, node, vendor, seen=seen, is_offered=bool(offered))
        elif offered and vendor.keys.register:
            yield NODES.warning(
                f"{node.name} offers {offered} {count}, but no plugin of Tessera or HAMi has registered its cards",
                why="another device plugin serves that resource: its pods get whole cards that Tessera does not count",
                fix=f"keep the other plugin off that node, or give it a resource name other than {count}",
            )
        return
    view = cluster.ledger.node(node.name)
    cards = view.of_vendor(vendor.key) if view is not None else []
    handshake = decode_handshake(
        node.annotations.get(vendor.keys.handshake) if vendor.keys.handshake else None, zone=_zone()
    )
    if not cards and (view is None or not view.facts.problem) and not _registers_nothing(node, vendor):
        since = _since(handshake, cluster.state.taken)
        yield NODES.broken(
            f"{node.name}: the plugin of {vendor.key} is gone{since}; its cards were removed from the ledger",
            why="pods that hold them keep running, but no pod is added",
            fix="kubectl get pods -A -o wide --field-selector spec.nodeName=" + node.name,
        )
        return
    if isinstance(handshake, Requesting) and keys.AGENT not in node.annotations:
        yield from _unanswered(cluster, node, vendor, handshake)
    slots = sum(card.device.slots for card in cards if card.device.healthy)
    # Only NVIDIA's plugins are known to offer one device per slot; with MIG they offer instances.
    counts_slots = vendor.key == Nvidia.key and not any(card.device.mode == MIG for card in cards)
    if cards and offered is not None and offered != slots and counts_slots:
        yield NODES.warning(
            f"{node.name}: kubelet offers {offered} {count}, the registration has {slots} slots on healthy cards",
            why="another plugin serves the resource too, or kubelet lost the plugin: kubelet may refuse pods there",
            fix="run only one device plugin per resource; if there is only one, restart it",
        )


def _unregistered(cluster: OfflineCluster, node: Node, vendor: Vendor, *, seen: str, is_offered: bool) -> Finding:
    """A node on which a plugin was `seen` and that registers no cards."""
    pods = sum(vendor.key in entry.facts.grants for entry in cluster.ledger.pods_on(node.name))
    if not pods and not is_offered:
        return NODES.warning(
            f"{node.name}: a plugin runs there ({seen}), but registers no cards of {vendor.key}",
            why="the node gets no device pods",
            fix="if the node has cards, the plugin's log says why it does not see them; else keep the plugin off it",
        )
    return NODES.broken(
        f"{node.name}: its registration of {vendor.key} cards has vanished ({vendor.keys.register}); a plugin was there"
        f" ({seen})",
        why=f"its cards take no new pods, and what {pods} pod(s) hold there is not counted",
        fix=f"restart the device plugin on {node.name}, which writes it again; if it vanishes again, find out who"
        f" removes it: kubectl get node {node.name} -o yaml --show-managed-fields",
    )


def _unanswered(cluster: OfflineCluster, node: Node, vendor: Vendor, asked: Requesting) -> Iterator[Finding]:
    """A plugin that no longer answers, although kubelet still offers its devices."""
    if asked.time is None or _moment(cluster) < asked.time + ANSWER_WITHIN:
        return
    minutes = int((_moment(cluster) - asked.time).total_seconds() // 60)
    yield NODES.warning(
        f"{node.name}: the plugin of {vendor.key} has not answered the scheduler for {minutes} minutes",
        why="its cards stay, because kubelet still offers them, but changes of their health go unnoticed",
        fix="restart the device plugin on that node; HAMi's plugins since v2.8 do not answer and need no restart",
    )


def _registers_nothing(node: Node, vendor: Vendor) -> bool:
    found = vendor.devices(node)
    return isinstance(found, tuple) and not found


def _since(handshake: object, now: float) -> str:
    if isinstance(handshake, Requesting) and handshake.time is not None:
        age = datetime.fromtimestamp(now, UTC) - handshake.time
        seconds = int(age.total_seconds())
        limit = int(ANSWER_WITHIN.total_seconds())
        return f" (it was asked {seconds} s ago and has not answered; {limit} s are allowed)"
    return ""


def _check_lock(cluster: OfflineCluster, node: Node) -> Iterator[Finding]:
    locks = {each.keys.lock: each.keys.lock_s for each in cluster.vendors.values() if each.keys.lock}
    for key, seconds in locks.items():
        text = node.annotations.get(key)
        if text is None:
            continue
        try:
            lock = decode_node_lock(text)
        except WireError:
            continue
        age = _moment(cluster) - lock.time
        if age.total_seconds() > (seconds or LOCK_S):
            owner = f" by {'/'.join(lock.owner)}" if lock.owner else ""
            yield NODES.warning(
                f"{node.name} has been locked{owner} for {int(age.total_seconds() // 60)} minutes ({key})",
                why="if its plugin needs the lock, no other pod is bound there meanwhile",
                fix=f"Tessera takes it over by itself; to remove it now: kubectl annotate node {node.name} {key}-",
            )


def _check_cordon(cluster: OfflineCluster, facts: NodeFacts) -> Iterator[Finding]:
    devices = {device.uuid: device for device in facts.devices}
    closed = [
        device
        for device in facts.devices
        if device.uuid in facts.cordoned and cluster.vendors[device.vendor].honours_cordon
    ]
    if closed:
        named = ", ".join(f"{facts.name}/{device.index}" for device in closed)
        yield NODES.fine(f"{named} cordoned: no new pods there until tessera uncordon {facts.name}/CARD")
    for uuid in sorted(facts.cordoned):
        if uuid not in devices:
            yield NODES.warning(
                f"{facts.name}: {keys.DEVICE_CORDON} names {uuid}, which is no card of this node",
                why="the card that was meant still takes new pods",
                fix=f"tessera uncordon {facts.name}/{uuid}, then tessera cordon {facts.name}/CARD; the node has "
                + (", ".join(sorted(devices)) or "no cards"),
            )
        elif not cluster.vendors[devices[uuid].vendor].honours_cordon:
            yield NODES.warning(
                f"{facts.name}: {keys.DEVICE_CORDON} names {uuid}, but cards of {devices[uuid].vendor} take no cordon",
                why="the card still takes new pods",
                fix=f"take the whole node out: kubectl cordon {facts.name}",
            )


def _check_held(cluster: OfflineCluster, facts: NodeFacts) -> Iterator[Finding]:
    """Cards that left a registration while pods hold them."""
    shown = {device.uuid for device in facts.devices}
    vendors = {device.vendor for device in facts.devices}
    holders: dict[str, list[str]] = {}
    for entry in cluster.ledger.pods_on(facts.name):
        held = entry.facts
        for vendor in vendors & held.grants.keys():
            for uuid in sorted({grant.uuid for grants in held.grants[vendor] for grant in grants} - shown):
                holders.setdefault(uuid, []).append(f"{held.namespace}/{held.name}")
    for uuid, pods in sorted(holders.items()):
        yield NODES.warning(
            f"{facts.name}: card {uuid} is not registered any more, but held by {', '.join(pods)}",
            why="it was taken out, or its driver or plugin does not see it; what is used of it is not counted",
            fix=f"look at the card (nvidia-smi -L on {facts.name}); delete the pods so that they get another one",
        )


def _agent(vendor: Vendor) -> str:
    """The annotation that Tessera's own agent leaves."""
    return keys.AGENT if vendor.key == Nvidia.key else ""


def _amount(node: Node, resource: str) -> int | None:
    text = node.allocatable.get(resource)
    if text is None:
        return None
    found = read(text)
    return found.value if isinstance(found, Whole) else None


def _is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


def _moment(cluster: OfflineCluster) -> datetime:
    return datetime.fromtimestamp(cluster.state.taken, UTC)


def _zone() -> tzinfo:
    return datetime.now().astimezone().tzinfo or UTC
