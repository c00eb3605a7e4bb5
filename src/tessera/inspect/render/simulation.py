"""A simulation as a page for people."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.inspect.render.choice import why
from tessera.inspect.render.explanation import asked, refused, section, slice_text
from tessera.inspect.render.lines import Line, Style, counted
from tessera.inspect.simulation import Placed, Simulation

LISTED = 20
"""copies shown one by one"""


def simulated(found: Simulation, *, width: int | None = None) -> Iterator[Line]:
    yield Line(f"{found.namespace}/{found.name}: {_headline(found)}", Style.GOOD if found.all_fit else Style.BAD)
    for warning in found.warnings:
        yield Line(f"warning from the webhook: {warning}", Style.WARN)
    if found.request is not None:
        yield from asked(found.request)
    yield from _copies(found)
    if found.why is not None:
        heading = "Why there" if found.count == 1 else f"Why the first one goes to {found.why.node}"
        yield from section(heading, why(found.why, found.expected))
    if found.request is not None or found.stop is not None:
        yield Line()
        yield Line("How many fit", Style.HEAD)
        yield Line(_total(found)).indented()
    if found.stop is not None:
        what = f"What stops {'the next one' if found.all_fit else f'number {found.fits_in_all + 1}'}"
        if found.stop.verdict is not None:
            yield from refused(found.stop.verdict, found.stop.kept_off, width=width, what=what)
        else:
            yield from (Line(), Line(what, Style.HEAD), Line(found.stop.text, Style.WARN).indented())


def _headline(found: Simulation) -> str:
    if found.request is None and found.stop is None:
        return "asks for no devices; Tessera has no say in it"
    if found.count == 1:
        return f"would go to {found.placed[0].node}" if found.placed else "would not be placed"
    return f"{min(found.fits_in_all, found.count)} of {found.count} would be placed"


def _copies(found: Simulation) -> Iterator[Line]:
    if not found.placed:
        return
    yield Line()
    if found.count > 1:
        nodes = ", ".join(f"{node} {number}" for node, number in found.by_node.items())
        yield Line(f"Would go to: {nodes}", Style.HEAD)
    else:
        yield Line("Would get", Style.HEAD)
    for one in found.placed[:LISTED]:
        if found.count == 1:
            yield from (Line(slice_text(each)).indented() for each in one.slices)
        else:
            yield Line(f"{one.name} on {one.node}: {_cards(one)}").indented()
    if len(found.placed) > LISTED:
        yield Line(f"and {len(found.placed) - LISTED} more").indented()


def _cards(one: Placed) -> str:
    """Equal slices of a container together."""
    groups: dict[tuple[str, int, int], list[str]] = {}
    for each in one.slices:
        groups.setdefault((each.container, each.memory_mib, each.cores), []).append(str(each.index))
    return "; ".join(
        f"{container} gets card{'s' if len(cards) > 1 else ''} {', '.join(cards)} ({memory} MiB, {cores} cores"
        f"{' each' if len(cards) > 1 else ''})"
        for (container, memory, cores), cards in groups.items()
    )


def _total(found: Simulation) -> str:
    if found.stop is None:
        return f"at least {found.fits_in_all}: counting ended there"
    beyond = found.fits_in_all - found.count
    more = f", so {counted(beyond, 'more')} than asked for".replace("mores", "more") if beyond > 0 else ""
    return f"{found.fits_in_all} in all{more}"
