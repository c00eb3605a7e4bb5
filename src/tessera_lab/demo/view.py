"""What the demo shows of its cluster at one moment: cards with the pods that hold them, and pending pods.

Read from the scheduler's own ledger and from the API. Colours and widths are the business of `bars`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tessera.core.ledger import Ledger
from tessera.inspect.slices import card_holders
from tessera.scheduler.engine_view import ClaimUsers
from tessera_lab.demo.cluster import DemoCluster
from tessera_lab.sandbox.objects import condition_of, has_ended, name_of, namespace_of, node_of

VENDOR = "NVIDIA"
_SIZE = re.compile(r"[0-9]+GB")


@dataclass(frozen=True, slots=True)
class SliceView:
    """A pod's part of a card."""

    pod: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True)
class CardView:
    node: str
    index: int
    model: str
    mode: str
    memory_mib: int
    used_mib: int
    cores: int
    used_cores: int
    state: str
    """empty if the card takes new pods"""
    slices: tuple[SliceView, ...]
    """the largest first"""


@dataclass(frozen=True, slots=True)
class WaitingView:
    """A pending pod."""

    pod: str
    why: str
    """kube-scheduler's message; empty before its first one"""


@dataclass(frozen=True, slots=True)
class ClusterView:
    cards: tuple[CardView, ...]
    waiting: tuple[WaitingView, ...]

    def card(self, node: str, index: int) -> CardView:
        return next(card for card in self.cards if (card.node, card.index) == (node, index))


def take_view(cluster: DemoCluster) -> ClusterView:
    return ClusterView(_cards(cluster.ledger, cluster.scheduler.service.view.users_of), _waiting(cluster))


def _cards(ledger: Ledger, users_of: ClaimUsers) -> tuple[CardView, ...]:
    found = []
    for name in ledger.node_names():
        view = ledger.node(name)
        for card in view.cards if view is not None else ():
            device = card.device
            held = [
                SliceView(short_name(one.namespace, one.name), one.memory_mib, one.cores)
                for one in card_holders(ledger, name, device.uuid, users_of)
            ]
            state = "" if device.healthy and not card.held else card.held or "unhealthy"
            found.append(
                CardView(
                    name,
                    device.index,
                    short_model(device.model),
                    device.mode,
                    device.memory,
                    card.used_memory,
                    device.cores,
                    card.used_cores,
                    state,
                    tuple(held),
                )
            )
    return tuple(found)


def _waiting(cluster: DemoCluster) -> tuple[WaitingView, ...]:
    found = []
    for pod in cluster.pods():
        if node_of(pod) or has_ended(pod):
            continue
        scheduled = condition_of(pod, "PodScheduled") or {}
        found.append(WaitingView(short_name(namespace_of(pod), name_of(pod)), str(scheduled.get("message", ""))))
    return tuple(found)


def short_name(namespace: str, name: str) -> str:
    """With the namespace only if it is not `default`."""
    return name if namespace == "default" else f"{namespace}/{name}"


def short_model(model: str) -> str:
    """The model's first word and its memory size, without vendor, form factor and kind of memory."""
    first, *rest = model.removeprefix(VENDOR).lstrip("- ").replace("-", " ").split() or [model]
    return " ".join([first, *(word for word in rest if _SIZE.fullmatch(word))])
