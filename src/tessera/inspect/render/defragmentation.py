"""Plans of moves for people."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.inspect.defragmentation import DefragmentationReport, PlannedMove
from tessera.inspect.render.explanation import section
from tessera.inspect.render.lines import Style, StyledLine, TableColumn, count_of, join_names, table

REASONS = 6
"""why pods stay that are listed"""


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
