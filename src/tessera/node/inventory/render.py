"""A node's cards in words, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.node.inventory.cards import CardFacts, Found, Links, MigInstance, UnreadableCard
from tessera.node.inventory.links import PairScores

MIB = 2**20
"""bytes"""

PairLinks = Mapping[tuple[str, str], Links]


def as_json(
    found: Sequence[Found], links: PairLinks, scores: PairScores, instances: Mapping[str, Sequence[MigInstance]]
) -> str:
    """One document with everything."""
    whole: dict[str, Any] = {
        "cards": [msgspec.to_builtins(card) for card in found],
        "links": [
            {
                "from": one,
                "to": other,
                "connection": None if way.connection is None else way.connection.name,
                "direct": way.direct,
                "switched": way.switched,
                "score": scores.scores[one][other],
            }
            for (one, other), way in links.items()
        ],
        "asymmetric": [list(pair) for pair in scores.asymmetric],
        "instances": msgspec.to_builtins([each for several in instances.values() for each in several]),
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def as_table(found: Sequence[Found], scores: PairScores, instances: Mapping[str, Sequence[MigInstance]]) -> str:
    """Lines that can be compared with what nvidia-smi prints."""
    lines = [line for card in found for line in _card(card, instances)] or ["no cards"]
    for one, row in scores.scores.items():
        lines.append(f"scores of {one}: " + (", ".join(f"{other} {score}" for other, score in row.items()) or "none"))
    lines += [f"asymmetric: {one} and {other}" for one, other in scores.asymmetric]
    return "\n".join(lines)


def _card(card: Found, instances: Mapping[str, Sequence[MigInstance]]) -> list[str]:
    if isinstance(card, UnreadableCard):
        return [f"{card.index}  {card.uuid or 'unknown'}  unreadable: {card.problem}"]
    mig = ("on" if card.mig_enabled else "off") if card.mig_capable else "none"
    memory = "unknown" if card.memory_bytes is None else f"{card.memory_bytes // MIB} MiB"
    numa = "unknown" if card.numa is None else card.numa
    return [
        f"{card.index}  {card.uuid}  {card.name}  {memory}  numa {numa}  {card.bus_id}  mig {mig}",
        *_offers(card),
        *(
            f"   GI {each.gpu_instance} profile {each.profile_id} at {each.placement.start}:{each.placement.size}"
            f"  {each.mig_uuid or 'no compute instance'}"
            for each in instances.get(card.uuid, ())
        ),
    ]


def _offers(card: CardFacts) -> list[str]:
    return [
        f"   {each.name:<16} id {each.profile_id:<3} {each.instances} x {each.memory_mib} MiB"
        f"  {each.multiprocessors} SMs  at " + " ".join(f"{place.start}:{place.size}" for place in each.placements)
        for each in card.mig_offers
    ]
