"""Closes cards to new pods, and opens them again: the only writer of a node's annotation `hami.io/device-cordon`.

Cards are named as NODE/CARD, where CARD is an index or a uuid, or several separated by commas. The annotation may name
cards that are not there any more; they stay until they are uncordoned by uuid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.core.model.devices import Device
from tessera.core.model.node_info import NodeInfo
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.state import InspectionError
from tessera.kube.client import KubeClient
from tessera.kube.errors import ApiError, is_conflict, is_forbidden
from tessera.kube.resources import NODES
from tessera.vendors.drafts import words
from tessera.wire import keys
from tessera.wire.objects import Node

HOW_TO_OPERATE = "Ask for the ClusterRole tessera-operator, which the chart installs."
"""for a person who lacks rights"""

ATTEMPTS = 5
"""writes of one node; each conflict means that another write came between"""


@dataclass(frozen=True, slots=True)
class NamedCard:
    """A card that an operator named."""

    node: str
    index: int | None
    """None if the node has no such card any more"""
    card: str
    """uuid"""
    model: str = ""

    @property
    def text(self) -> str:
        return f"{self.node}/{self.card if self.index is None else self.index}"


def parse_names(texts: Iterable[str]) -> dict[str, list[str]]:
    """What is named of each node, in the order given. Raises InspectionError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        node, _, listed = text.partition("/")
        named = [word.strip() for word in listed.split(",") if word.strip()]
        if not node or not named:
            raise InspectionError(f"{text!r} names no card; write NODE/CARD with its index or uuid, e.g. gpu-1/0")
        known = found.setdefault(node, [])
        known += [word for word in named if word not in known]
    return found


def find_cards(
    cluster: OfflineCluster, names: Mapping[str, Sequence[str]], *, opening: bool = False
) -> list[NamedCard]:
    """The cards with these names. `opening`: a uuid may also be one that only the cordon names.

    Raises InspectionError for a name that means no card or several, and for cards that take no cordon."""
    found: dict[str, NamedCard] = {}
    for node, listed in names.items():
        view = cluster.ledger.node(node)
        annotations = cluster.nodes[node]["metadata"].get("annotations", {})
        cordoned = words(annotations, keys.DEVICE_CORDON)
        for name in listed:
            if opening and name in cordoned and name not in cluster.ledger.devices(node):
                found.setdefault(f"{node}/{name}", NamedCard(node, None, name))
                continue
            device = _find_device(node, name, view)
            if not cluster.vendors[device.vendor].honours_cordon:
                raise InspectionError(
                    f"{node}/{name}: cards of {device.vendor} take no cordon; take the whole node out: "
                    f"kubectl cordon {node}"
                )
            found.setdefault(f"{node}/{device.uuid}", NamedCard(node, device.index, device.uuid, device.model))
    return list(found.values())


def _find_device(node: str, name: str, view: NodeInfo | None) -> Device:
    if view is None or not view.cards:
        why = f": {view.facts.problem}" if view is not None and view.facts.problem else ""
        raise InspectionError(f"no cards of node {node} are known{why}; tessera doctor says more")
    devices = [card.device for card in view.cards]
    exact = [device for device in devices if device.uuid == name]
    found = exact or [device for device in devices if name.isdecimal() and device.index == int(name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{device.index} ({device.uuid})" for device in found or devices)
    what = "means several cards, name one by its uuid" if found else f"is no card of node {node}, which has"
    raise InspectionError(f"{node}/{name}: {name} {what}: {listed}")


async def cordon(client: KubeClient, cards: Collection[NamedCard]) -> dict[NamedCard, bool]:
    """Closes the cards to new pods. Says of each whether it was open."""
    return await _write(client, cards, close=True)


async def uncordon(client: KubeClient, cards: Collection[NamedCard]) -> dict[NamedCard, bool]:
    """Opens the cards to new pods. Says of each whether it was closed."""
    return await _write(client, cards, close=False)


async def _write(client: KubeClient, cards: Collection[NamedCard], *, close: bool) -> dict[NamedCard, bool]:
    changed: dict[NamedCard, bool] = {}
    for node in dict.fromkeys(card.node for card in cards):
        before = await _change(client, node, [card.card for card in cards if card.node == node], close=close)
        changed |= {card: (card.card in before) is not close for card in cards if card.node == node}
    return changed


async def _change(client: KubeClient, node: str, uuids: Sequence[str], *, close: bool) -> frozenset[str]:
    """Adds the uuids to the node's cordon, or removes them. Returns the cordon as it was before."""
    path = NODES.path(name=node)
    for _ in range(ATTEMPTS):
        found = await client.get(path, Node)
        before = frozenset(words(found.annotations, keys.DEVICE_CORDON))
        after = before | set(uuids) if close else before - set(uuids)
        if after == before:
            return before
        # The version makes sure that no other change of the cordon is lost.
        metadata = {
            "resourceVersion": found.metadata.resource_version,
            "annotations": {keys.DEVICE_CORDON: ",".join(sorted(after)) or None},
        }
        try:
            await client.patch(path, {"metadata": metadata})
        except ApiError as error:
            if is_forbidden(error):
                raise InspectionError(f"you may not change node {node}: {error.message}\n{HOW_TO_OPERATE}") from error
            if not is_conflict(error):
                raise
            continue
        return before
    raise InspectionError(f"node {node} was changed by others {ATTEMPTS} times in a row; try again")
