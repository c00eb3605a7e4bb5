"""Everything that `tessera top` and `explain` know about one card, node or pod, as documents of the page.

    {"title": "card 0 of n1", "lines": [{"text": "...", "style": "plain"}], "facts": {"vendor": "NVIDIA"}}

A pod's answer also has `history`, records of the journal. All of them work on a ledger, so that they tell of the past
as they tell of the present.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera.core.holders import Holder
from tessera.core.ledger import Ledger
from tessera.inspect.render.explanation import section, slice_text
from tessera.inspect.render.lines import Style, StyledLine
from tessera.inspect.render.usage import cards_table
from tessera.inspect.slices import holder_slices
from tessera.inspect.state import Json
from tessera.inspect.usage import CardUsage, holding_pods, sum_amounts, usage_of
from tessera.inspect.utilization import MeasuredUse
from tessera.scheduler.engine_view import ClaimUsers

NAMED_PROFILES = 12


def card_details(
    ledger: Ledger, node: str, uuid: str, measured: MeasuredUse, users_of: ClaimUsers | None
) -> Json | None:
    """None if there is no such card. `users_of` says which pods use a claim."""
    view = ledger.node(node)
    card = next((card for card in view.cards if card.device.uuid == uuid), None) if view is not None else None
    if view is None or card is None:
        return None
    device = card.device
    usage = usage_of(ledger, node, card, view.facts.problem, measured, users_of)
    links = sorted(f"{_index(ledger, node, other)}: {score}" for other, score in device.links.items())
    facts = {
        "vendor": device.vendor,
        "healthy": "yes" if device.healthy else "no",
        "cordoned": "yes" if card.cordoned else "no",
        "freeMemory": f"{usage.memory_mib.total - usage.memory_mib.used} MiB",
        "freeCores": f"{usage.cores.total - usage.cores.used} %",
        "freeSlots": usage.slots.total - usage.slots.used,
        "linkScores": ", ".join(links),
        "migProfiles": ", ".join(profile.name for profile in device.mig_profiles[:NAMED_PROFILES]),
        "node": view.facts.problem,
    }
    return _document(f"card {device.index} of {node}", _table([usage]), facts)


def node_details(
    ledger: Ledger, name: str, measured: MeasuredUse, facts: Json, users_of: ClaimUsers | None
) -> Json | None:
    """None if the node has registered nothing. `facts` are those that its source knows beside."""
    view = ledger.node(name)
    if view is None:
        return None
    cards = [usage_of(ledger, name, card, view.facts.problem, measured, users_of) for card in view.cards]
    memory, cores = sum_amounts(use.memory_mib for use in cards), sum_amounts(use.cores for use in cards)
    found = {
        "cards": len(cards),
        "closedCards": sum(bool(use.state) for use in cards),
        "pods": len(holding_pods(cards)),
        "freeMemory": f"{memory.total - memory.used} of {memory.total} MiB",
        "freeCores": f"{cores.total - cores.used} of {cores.total} %",
        **{f"trait {key}": value for key, value in view.facts.traits.items()},
        **facts,
    }
    return _document(f"node {name}", _table(cards), found)


def pod_details(
    namespace: str, name: str, *, lines: Iterable[StyledLine], facts: Json, history: Sequence[Json] = ()
) -> Json:
    return {**_document(f"pod {namespace}/{name}", lines, facts), "history": list(history)}


def held_lines(ledger: Ledger, entry: Holder, containers: Sequence[str] = ()) -> list[StyledLine]:
    """What a pod holds, as the ledger knows it."""
    facts = entry.facts
    slices = holder_slices(ledger, facts, containers)
    head = StyledLine(f"{facts.namespace}/{facts.name}: {entry.state.value} on {facts.node}", Style.GOOD)
    problem = [StyledLine(facts.problem, Style.BAD)] if facts.problem else []
    return [head, *problem, *section("Holds", [StyledLine(slice_text(one)) for one in slices])]


def find_entry(ledger: Ledger, namespace: str, name: str) -> Holder | None:
    """The pod of this name that holds something."""
    for entry in ledger.pods():
        if entry.facts.name == name and entry.facts.namespace == namespace:
            return entry
    return None


def _table(cards: Sequence[CardUsage]) -> list[StyledLine]:
    return cards_table(cards, width=None, wide=True, ascii_only=False)


def _index(ledger: Ledger, node: str, uuid: str) -> str:
    device = ledger.devices(node).get(uuid)
    return f"card {device.index}" if device is not None else uuid


def _document(title: str, lines: Iterable[StyledLine], facts: Json) -> Json:
    return {
        "title": title,
        "lines": [{"text": line.text, "style": line.style.value} for line in lines],
        "facts": {key: value for key, value in facts.items() if value not in ("", None)},
    }
