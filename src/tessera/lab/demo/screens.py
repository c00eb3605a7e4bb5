"""Where the story is told: plain lines for pipes and logs, documents for programs. The live view is in `live`.

A screen only shows; it never touches the cluster.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.inspect.render.documents import encode_document, make_document
from tessera.inspect.render.lines import bar
from tessera.lab.demo.view import CardView, View

Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Started:
    """What a person needs to know to join in."""

    server: str
    kubeconfig: str
    folder: str
    seconds: float
    commands: tuple[str, ...]


class Screen(Protocol):
    """All calls come from the event loop, in the order in which things happen."""

    def begin(self, started: Started, view: View) -> None: ...

    def step(self, number: int, title: str) -> None:
        """Something is about to be done."""
        ...

    def told(self, lines: Sequence[str], view: View) -> None:
        """What came of it."""
        ...

    def seen(self, view: View) -> None:
        """The cluster changed, whoever did it."""
        ...

    def end(self, text: str) -> None: ...


class PlainScreen:
    """Lines of text; after every step the cards that changed."""

    def __init__(self, echo: Echo, *, ascii_only: bool = False) -> None:
        self._echo = echo
        self._ascii_only = ascii_only
        self._shown: dict[tuple[str, int], CardView] = {}

    def begin(self, started: Started, view: View) -> None:
        self._echo(f"Ready after {started.seconds:.1f} s: {summary(view)}.")
        self._echo("In another terminal:")
        for command in started.commands:
            self._echo(f"  {command}")
        self._remember(view)

    def step(self, number: int, title: str) -> None:
        self._echo("")
        self._echo(f"{number}. {title}")

    def told(self, lines: Sequence[str], view: View) -> None:
        for line in lines:
            self._echo(f"   {line}")
        for card in view.cards:
            if self._shown.get((card.node, card.index)) != card:
                self._echo(f"   {card_line(card, ascii_only=self._ascii_only)}")
        self._remember(view)

    def seen(self, view: View) -> None:
        """Steps show what changed."""

    def end(self, text: str) -> None:
        self._echo("")
        self._echo(text)

    def _remember(self, view: View) -> None:
        self._shown = {(card.node, card.index): card for card in view.cards}


class DocumentScreen:
    """One document for the start and for every step: JSON, one a line, or YAML."""

    def __init__(self, echo: Echo, form: str) -> None:
        self._echo = echo
        self._form = form
        self._number = 0
        self._title = ""

    def begin(self, started: Started, view: View) -> None:
        self._write("DemoStarted", dataclasses.asdict(started) | _of(view))

    def step(self, number: int, title: str) -> None:
        self._number, self._title = number, title

    def told(self, lines: Sequence[str], view: View) -> None:
        self._write("DemoStep", {"number": self._number, "title": self._title, "told": list(lines)} | _of(view))

    def seen(self, view: View) -> None:
        """Programs that want more watch the API."""

    def end(self, text: str) -> None:
        """The last document was the last step."""

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        made = make_document(kind, None, content)
        self._echo(
            json.dumps(made, ensure_ascii=False)
            if self._form == "json"
            else f"---\n{encode_document(made, 'yaml')}".rstrip()
        )


def summary(view: View) -> str:
    nodes = len({card.node for card in view.cards})
    return f"{nodes} nodes with {len(view.cards)} cards, and nothing of it is real hardware"


def card_line(card: CardView, *, ascii_only: bool) -> str:
    """One card in one line, for screens without colours."""
    share = card.used_mib / card.memory_mib if card.memory_mib else 0.0
    filled = bar(share, ascii_only=ascii_only)
    who = ", ".join(f"{one.pod} {one.memory_mib}" for one in card.slices) or "free"
    state = f" ({card.state})" if card.state else ""
    cores = f"{card.used_cores:>3}/{card.cores} cores"
    return f"{card.node:<9}card {card.index}  {filled}  {card.used_mib:>6}/{card.memory_mib} MiB  {cores}  {who}{state}"


def _of(view: View) -> dict[str, Any]:
    return {
        "cards": [dataclasses.asdict(card) for card in view.cards],
        "waiting": [dataclasses.asdict(pod) for pod in view.waiting],
    }
