"""What became different between two fleets, in lines for the log. Pure, so that a scan without news says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tessera.node.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Change:
    """One line."""

    text: str
    bad: bool = False
    fields: dict[str, object] = field(default_factory=dict)


def changes(old: Fleet, new: Fleet) -> Iterator[Change]:
    """In order of cards."""
    if new.problem and new.problem != old.problem:
        yield Change("the cards cannot be read", bad=True, fields={"problem": new.problem})
    elif old.problem and not new.problem:
        yield Change("the cards were read", fields={"cards": len(new.cards)})
    for card in new:
        about: dict[str, object] = {"card": card.facts.uuid, "index": card.facts.index}
        known = old.card(card.facts.uuid)
        if known is None:
            yield Change("card found", fields={**about, "model": card.facts.name})
        if card.problem and (known is None or card.problem != known.problem):
            yield Change("card unhealthy", bad=True, fields={**about, "problem": card.problem})
        elif known is not None and known.problem and not card.problem:
            yield Change("card healthy again", fields={**about, "problem_before": known.problem})
    for card in old:
        if new.card(card.facts.uuid) is None:
            yield Change("card no longer listed", bad=True, fields={"card": card.facts.uuid, "index": card.facts.index})
