"""Drains for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.inspect.render.lines import Style, StyledLine, TableColumn, count_of, table
from tessera.inspect.state import Json
from tessera.maintenance.cordon import NamedCard
from tessera.maintenance.defrag import MoveProgress
from tessera.maintenance.drain import DrainResult, Holders, HoldingPod


def holders_table(holders: Holders, *, width: int | None) -> list[StyledLine]:
    """The pods that hold the cards, and those that may."""
    columns: list[TableColumn[HoldingPod]] = [
        TableColumn("POD", lambda pod: pod.text),
        TableColumn("CARDS", lambda pod: ", ".join(pod.cards)),
        TableColumn("MIB", lambda pod: pod.memory_mib, right=True),
        TableColumn("CREATED BY", lambda pod: pod.controller or "-"),
    ]
    lines = table(columns, holders.pods, width=width) if holders.pods else [StyledLine("no pod holds a slice")]
    return [*lines, *(StyledLine(f"may hold a slice: {text}", Style.WARN) for text in holders.doubts)]


LATE_BIND = (
    "a pod that was placed before the cordon, and waits for a volume or its gang, may still come: repeat to be sure"
)


def result_lines(cards: Sequence[NamedCard], result: DrainResult, *, dry_run: bool) -> Iterator[StyledLine]:
    what, gone = ", ".join(card.text for card in cards), len(result.pods) - len(result.left)
    if result.is_drained:
        done = "would be drained" if dry_run else "drained"
        evicted = f"{count_of(gone, 'pod')} {'would be evicted' if dry_run else 'gone'}"
        yield StyledLine(f"{what}: {done}, {evicted}", Style.GOOD)
        if not dry_run:
            yield StyledLine(LATE_BIND, Style.DIM)
        return
    left = [*(f"{each.pod.text} ({each.reason or each.stage.value.lower()})" for each in result.left), *result.doubts]
    yield StyledLine(f"{what}: not drained, {count_of(len(left), 'pod')} left", Style.BAD)
    yield from (StyledLine(text).indented() for text in left)


def drain_document(cards: Sequence[NamedCard], result: DrainResult, *, dry_run: bool) -> Json:
    return {
        "dry_run": dry_run,
        "drained": result.is_drained,
        "cards": [{"node": card.node, "index": card.index, "card": card.card} for card in cards],
        "pods": [
            {"namespace": each.pod.namespace, "name": each.pod.name, "stage": each.stage.value, "reason": each.reason}
            for each in result.pods
        ],
        "doubts": list(result.doubts),
    }


def moves_document(moves: Sequence[MoveProgress], *, dry_run: bool) -> Json:
    return {
        "dry_run": dry_run,
        "moves": [
            {
                "namespace": each.move.namespace,
                "name": each.move.name,
                "target": each.move.target.text,
                "stage": each.stage.value,
                "reason": each.reason,
            }
            for each in moves
        ],
    }
