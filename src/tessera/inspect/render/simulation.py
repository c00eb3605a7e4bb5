"""Simulations for people."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.inspect.render.explanation import (
    choice_lines,
    preemption_line,
    refusal_lines,
    request_lines,
    section,
    slice_text,
)
from tessera.inspect.render.lines import Style, StyledLine
from tessera.inspect.simulation import SimulatedPlacement, Simulation

LISTED = 20
"""how many copies are listed one by one"""


def simulation_lines(found: Simulation, *, width: int | None = None) -> Iterator[StyledLine]:
    yield StyledLine(f"{found.namespace}/{found.name}: {_headline(found)}", Style.GOOD if found.all_fit else Style.BAD)
    for warning in found.warnings:
        yield StyledLine(f"warning from the webhook: {warning}", Style.WARN)
    if found.request is not None:
        yield from request_lines(found.request)
    yield from _copies(found)
    if found.why is not None:
        heading = "Why there" if found.count == 1 else f"Why the first copy goes to {found.why.node}"
        yield from section(heading, choice_lines(found.why, found.expected))
    if found.request is not None or found.stop is not None:
        yield from section("How many fit", [StyledLine(_total(found))])
    if found.stop is not None:
        what = f"What stops {'the next copy' if found.all_fit else f'copy {found.fits_in_all + 1}'}"
        if found.stop.verdict is not None:
            yield from refusal_lines(found.stop.verdict, found.stop.kept_off, width=width, what=what)
        else:
            yield from section(what, [StyledLine(found.stop.text, Style.WARN)])
        if found.stop.preemption is not None:
            yield from section("Preemption", [preemption_line(found.stop.preemption)])


def _headline(found: Simulation) -> str:
    if found.request is None and found.stop is None:
        return "requests no devices, so Tessera does not place it"
    if found.count == 1:
        return f"would go to {found.placed[0].node}" if found.placed else "would not be placed"
    return f"{min(found.fits_in_all, found.count)} of {found.count} would be placed"


def _copies(found: Simulation) -> Iterator[StyledLine]:
    if not found.placed:
        return
    if found.count == 1:
        yield from section("Would get", [StyledLine(slice_text(each)) for each in found.placed[0].slices])
        return
    nodes = ", ".join(f"{node} {number}" for node, number in found.by_node.items())
    lines = [f"{one.name} on {one.node}: {_cards(one)}" for one in found.placed[:LISTED]]
    lines += [f"and {len(found.placed) - LISTED} more"] if len(found.placed) > LISTED else []
    yield from section(f"Would go to: {nodes}", map(StyledLine, lines))


def _cards(one: SimulatedPlacement) -> str:
    """Groups equal slices of a container."""
    groups: dict[tuple[str, int, int], list[str]] = {}
    for each in one.slices:
        holder = each.container or f"claim {each.claim}"
        groups.setdefault((holder, each.memory_mib, each.cores), []).append(str(each.index))
    return "; ".join(
        f"{container} gets card{'s' if len(cards) > 1 else ''} {', '.join(cards)} ({memory} MiB, {cores} cores"
        f"{' each' if len(cards) > 1 else ''})"
        for (container, memory, cores), cards in groups.items()
    )


def _total(found: Simulation) -> str:
    if found.stop is None:
        return f"at least {found.fits_in_all}; counting stopped there"
    beyond = found.fits_in_all - found.count
    more = f": {beyond} more than requested" if beyond > 0 else ""
    return f"{found.fits_in_all} in all{more}"
