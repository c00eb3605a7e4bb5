"""What the demo shows of its cluster at one moment, and screens that show it: plain lines, or documents for programs.

A view is read from the scheduler's own ledger and from the API; a screen only shows and never touches the cluster. The
live view is in `live`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.core.ledger.ledger import Ledger
from tessera.inspect.render.documents import encode_document, make_document
from tessera.inspect.render.lines import bar
from tessera.inspect.slices import card_holders
from tessera.scheduler.engine_view import ClaimUsers
from tessera.services.terminal_json import encode_json
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


Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoStarted:
    """What a person needs to know to use the cluster."""

    server: str
    kubeconfig: str
    folder: str
    seconds: float
    commands: tuple[str, ...]
    page: str = ""
    """address of the dashboard; empty if there is none"""


class Screen(Protocol):
    """All calls come from the event loop, in the order in which things happen."""

    def on_started(self, started: DemoStarted, view: ClusterView) -> None: ...

    def on_step(self, number: int, title: str) -> None:
        """A step begins."""
        ...

    def on_result(self, lines: Sequence[str], view: ClusterView) -> None:
        """What happened in the step."""
        ...

    def on_change(self, view: ClusterView) -> None:
        """The cluster may have changed."""
        ...

    def on_end(self, text: str) -> None: ...


class PlainScreen:
    """Lines of text, with the cards that changed after every step."""

    def __init__(self, echo: Echo, *, ascii_only: bool = False) -> None:
        self._echo = echo
        self._ascii_only = ascii_only
        self._shown: dict[tuple[str, int], CardView] = {}

    def on_started(self, started: DemoStarted, view: ClusterView) -> None:
        self._echo(f"A cluster of {describe_hardware(view)} is ready after {started.seconds:.1f} s.")
        if started.commands:
            self._echo("Try this in another terminal:")
        for command in started.commands:
            self._echo(f"  {command}")
        if started.page:
            self._echo(f"The dashboard: {started.page}")
        self._remember(view)

    def on_step(self, number: int, title: str) -> None:
        self._echo("")
        self._echo(f"{number}. {title}")

    def on_result(self, lines: Sequence[str], view: ClusterView) -> None:
        for line in lines:
            self._echo(f"   {line}")
        for card in view.cards:
            if self._shown.get((card.node, card.index)) != card:
                self._echo(f"   {card_line(card, ascii_only=self._ascii_only)}")
        self._remember(view)

    def on_change(self, view: ClusterView) -> None:
        """Nothing to do: the end of each step shows what changed."""

    def on_end(self, text: str) -> None:
        self._echo("")
        self._echo(text)

    def _remember(self, view: ClusterView) -> None:
        self._shown = {(card.node, card.index): card for card in view.cards}


class DocumentScreen:
    """One document for the start and for every step: JSON, one document per line, or YAML."""

    def __init__(self, echo: Echo, form: str) -> None:
        self._echo = echo
        self._form = form
        self._number = 0
        self._title = ""

    def on_started(self, started: DemoStarted, view: ClusterView) -> None:
        self._write("DemoStarted", dataclasses.asdict(started) | _of(view))

    def on_step(self, number: int, title: str) -> None:
        self._number, self._title = number, title

    def on_result(self, lines: Sequence[str], view: ClusterView) -> None:
        self._write("DemoStep", {"number": self._number, "title": self._title, "told": list(lines)} | _of(view))

    def on_change(self, view: ClusterView) -> None:
        """Nothing to do: programs can watch the API."""

    def on_end(self, text: str) -> None:
        """Nothing to do: the last step was the last document."""

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        made = make_document(kind, None, content)
        self._echo(
            encode_json(made, ascii_only=True).rstrip()
            if self._form == "json"
            else f"---\n{encode_document(made, 'yaml', ascii_only=True)}".rstrip()
        )


def describe_hardware(view: ClusterView) -> str:
    nodes = len({card.node for card in view.cards})
    return f"{nodes} nodes with {len(view.cards)} simulated cards"


def card_line(card: CardView, *, ascii_only: bool) -> str:
    """One line per card, for screens without colours."""
    share = card.used_mib / card.memory_mib if card.memory_mib else 0.0
    filled = bar(share, ascii_only=ascii_only)
    who = ", ".join(f"{one.pod} {one.memory_mib}" for one in card.slices) or "free"
    state = f" ({card.state})" if card.state else ""
    cores = f"{card.used_cores:>3}/{card.cores} cores"
    return f"{card.node:<9}card {card.index}  {filled}  {card.used_mib:>6}/{card.memory_mib} MiB  {cores}  {who}{state}"


def _of(view: ClusterView) -> dict[str, Any]:
    return {
        "cards": [dataclasses.asdict(card) for card in view.cards],
        "waiting": [dataclasses.asdict(pod) for pod in view.waiting],
    }
