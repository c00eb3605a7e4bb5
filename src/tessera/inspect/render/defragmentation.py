"""Plans of moves for people: as lines, and as a picture of the cards that they concern, before and after.

The picture is one SVG document. A card is a bar as long as its memory is large; what pods have of it fills it. Pods
that move have a colour each, the same in both halves; pods that stay are grey, and cards without any pod have a frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from tessera.inspect.defragmentation import DefragmentationReport, PlannedMove
from tessera.inspect.offline_cluster import OfflineCluster
from tessera.inspect.render.explanation import section
from tessera.inspect.render.lines import Style, StyledLine, TableColumn, count_of, join_names, table

REASONS = 6
"""why pods stay that are listed"""

COLOURS = ("#0b6e4f", "#c1440e", "#2a5db0", "#8a5a00", "#7a3e9d", "#b0246a", "#3f8f9c", "#5f7d1f")
"""readable on white; repeated for further pods"""
STAYS, FRAME, EMPTY = "#c3c9ce", "#9aa3ab", "#1a8f5a"
MAX_NODES = 40
"""that are drawn, those with the most cards gained first"""
LEFT, NAME, CARD, GAP, ROW, TOP = 16, 110, 56, 6, 26, 64
BAR = 14
"""heights and widths are in units of the picture"""


def plan_lines(found: DefragmentationReport, *, width: int | None = None) -> Iterator[StyledLine]:
    yield StyledLine(f"{found.goal}: {_headline(found)}", Style.GOOD if found.is_reached else Style.BAD)
    if found.problem:
        yield StyledLine(f"a plan was found, but not confirmed: {found.problem}", Style.WARN)
    if found.moves:
        columns: list[TableColumn[PlannedMove]] = [
            TableColumn("STEP", lambda move: move.step, right=True),
            TableColumn("POD", lambda move: f"{move.namespace}/{move.name}"),
            TableColumn("CREATED BY", lambda move: move.controller or "-"),
            TableColumn("PRIORITY", lambda move: move.priority, right=True),
            TableColumn("MIB", lambda move: move.memory_mib, right=True),
            TableColumn("FROM", lambda move: move.source.text),
            TableColumn("TO", lambda move: move.target.text),
        ]
        yield StyledLine()
        yield from table(columns, found.moves, width=width)
    if found.gained_on:
        yield from section("Gained on", [StyledLine(join_names(sorted(set(found.gained_on)), 12))])
    if found.is_cut_short:
        yield StyledLine()
        yield StyledLine("Not all ways were looked at: that takes too long. More may be possible.", Style.WARN)
    if not found.is_reached and found.stays:
        yield from section("Why pods stay", [StyledLine(text) for text in found.stays[:REASONS]])


def _headline(found: DefragmentationReport) -> str:
    moves = count_of(len(found.moves), "move")
    if found.wanted is None:
        if not found.moves:
            return f"{found.fitting} are free, and no move frees another one"
        return f"{moves}, {found.fitting} free now, {found.fitting + found.gained} afterwards"
    if not found.moves and found.is_reached:
        return "all fit without any move"
    after = f"{found.fitting} of {found.wanted} fit now"
    if not found.moves:
        return f"{after}, and no move makes room for another one"
    return f"{moves}, {after}, {min(found.fitting + found.gained, found.wanted)} afterwards"


@dataclass(frozen=True, slots=True)
class CardUse:
    """One card: its memory, and what each pod has of it."""

    memory: int
    pods: tuple[tuple[str, int], ...]
    """uids with MiB"""


NodeCards = dict[str, list[CardUse]]
"""by node, in the order of the cards' indexes"""


def plan_picture(cluster: OfflineCluster, found: DefragmentationReport) -> str:
    """An SVG document."""
    before, after = _cards(cluster, found, moved=False), _cards(cluster, found, moved=True)
    widest = max((len(cards) for cards in before.values()), default=1)
    panel = NAME + widest * (CARD + GAP)
    width, height = 2 * (LEFT + panel), TOP + ROW * len(before) + 24
    colours = {move.uid: COLOURS[place % len(COLOURS)] for place, move in enumerate(found.moves)}
    title = f"{found.goal}: {count_of(len(found.moves), 'move')}, {found.gained} gained"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title, quote=True)}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for place, (heading, cards) in enumerate((("before", before), ("after", after))):
        x = LEFT + place * (LEFT + panel)
        empty = sum(not card.pods for on_node in cards.values() for card in on_node)
        parts.append(f'<text x="{x}" y="48">{heading}: {count_of(empty, "card")} without any pod</text>')
        for row, (node, on_node) in enumerate(cards.items()):
            y = TOP + row * ROW
            parts.append(f'<text x="{x}" y="{y + BAR - 2}">{escape(_short(node))}</text>')
            for column, card in enumerate(on_node):
                parts.extend(_bar(card, x + NAME + column * (CARD + GAP), y, colours))
    others = len(cluster.ledger.node_names()) - len(before)
    if others:
        parts.append(f'<text x="{LEFT}" y="{height - 8}">and {count_of(others, "other node")}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _bar(card: CardUse, x: int, y: int, colours: dict[str, str]) -> Iterator[str]:
    stroke = FRAME if card.pods else EMPTY
    thick = 1 if card.pods else 2
    yield f'<rect x="{x}" y="{y}" width="{CARD}" height="{BAR}" fill="white" stroke="{stroke}" stroke-width="{thick}"/>'
    at = float(x)
    for uid, memory in sorted(card.pods, key=lambda pod: (pod[0] in colours, pod[0])):
        wide = round(CARD * min(memory / max(card.memory, 1), 1.0), 1)
        fill = colours.get(uid, STAYS)
        yield f'<rect x="{at:g}" y="{y}" width="{wide:g}" height="{BAR}" fill="{fill}" stroke="white"/>'
        at = round(at + wide, 1)


def _cards(cluster: OfflineCluster, found: DefragmentationReport, *, moved: bool) -> NodeCards:
    """The cards of the nodes that the plan concerns; `moved`: after its moves."""
    ledger = cluster.ledger
    leaving = {move.uid for move in found.moves} if moved else set()
    uses: dict[str, dict[str, list[tuple[str, int]]]] = {name: {} for name in _concerned(found)}
    for name, cards in uses.items():
        for entry in ledger.pods_on(name):
            for uuid, holding in entry.holdings.items() if entry.facts.uid not in leaving else ():
                cards.setdefault(uuid, []).append((entry.facts.uid, holding.use.memory))
    for move in found.moves if moved else ():
        for held in move.target.held if move.target.node in uses else ():
            uses[move.target.node].setdefault(held.uuid, []).append((move.uid, held.memory))
    return {
        name: [
            CardUse(device.memory, tuple(cards.get(device.uuid, ())))
            for device in sorted(ledger.devices(name).values(), key=lambda device: (device.index, device.uuid))
        ]
        for name, cards in uses.items()
    }


def _concerned(found: DefragmentationReport) -> list[str]:
    """Nodes that gain first if there are too many; then by name."""
    gained = {place.node for place in found.gained_places}
    nodes = gained | {node for move in found.moves for node in (move.source.node, move.target.node)}
    return sorted(sorted(nodes, key=lambda node: (node not in gained, node))[:MAX_NODES])


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
