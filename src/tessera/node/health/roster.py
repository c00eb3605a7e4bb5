"""All cards that were ever seen, their last facts and their health, kept from scans and from the driver's events.

A card that cannot be read keeps its last facts; one that is not found any more stays for KEPT_S as unhealthy, so that
kubelet sees a sick card and not a smaller node. Cards that the configuration leaves out are nowhere. What happens to
one card changes no other. Only from the event loop; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.node.fleet import CardState, Fleet
from tessera.node.health.state import Health, after_fault, after_good_probe
from tessera.node.health.xids import rules_of
from tessera.node.inventory.cards import CardEvent, CardFacts, Found, UnreadableCard
from tessera.node.settings import AgentSettings

KEPT_S = 600.0
"""how long a card is listed after it was found last"""
NOT_READ = Fleet(problem="the cards have not been read yet")
GONE = "not found any more"


@dataclass(slots=True)
class _Card:
    facts: CardFacts
    found_at: float
    health: Health = field(default_factory=Health)
    readable: bool = True
    deaf: str = ""
    """why its events cannot be heard"""

    def fault(self, problem: str, now: float) -> None:
        self.health = after_fault(self.health, problem, now=now)


class Roster:
    """`now` is in seconds of a clock that only goes forward."""

    def __init__(self, settings: AgentSettings) -> None:
        self._cards: dict[str, _Card] = {}
        self._problem = NOT_READ.problem
        self.unfit: Mapping[str, str] = {}
        """why cards that are well cannot be shared in the node's mode, by uuid; no fault of theirs"""
        self.strangers: Mapping[str, str] = {}
        """cards of the last scan of which nothing is known but why; by uuid or index"""
        self.use(settings)

    def use(self, settings: AgentSettings) -> None:
        """Other settings; what is known of the cards stays."""
        self._rules = rules_of(settings)
        self._filter = settings.node.filtered
        self._left_out: dict[str, bool] = {}
        """decided when a card is first seen: when a card is lost, the driver may number the others anew"""
        for uuid, card in list(self._cards.items()):
            if self._is_left_out(uuid, card.facts.index):
                del self._cards[uuid]
            # Whoever listens under the new settings says it again.
            card.deaf = ""

    @property
    def fleet(self) -> Fleet:
        cards = sorted(self._cards.values(), key=lambda card: (card.facts.index, card.facts.uuid))
        return Fleet(tuple(CardState(card.facts, self._problem_of(card)) for card in cards), self._problem)

    @property
    def is_well(self) -> bool:
        return not self._problem and not self.strangers and all(card.health.healthy for card in self._cards.values())

    @property
    def faults(self) -> Mapping[str, int]:
        """All that were ever counted, by card."""
        return {uuid: card.health.faults for uuid, card in self._cards.items()}

    @property
    def to_hear(self) -> tuple[str, ...]:
        """Cards whose events matter."""
        if not self._rules.health_checks:
            return ()
        return tuple(sorted(uuid for uuid, card in self._cards.items() if card.readable))

    @property
    def some_deaf(self) -> bool:
        return any(card.deaf for card in self._cards.values())

    def scanned(self, found: Sequence[Found], *, now: float) -> None:
        """All cards that there are."""
        self._problem = ""
        strangers: dict[str, str] = {}
        seen: set[str] = set()
        for each in sorted(found, key=lambda each: isinstance(each, UnreadableCard)):
            uuid = each.uuid or None
            if uuid is None and isinstance(each, UnreadableCard):
                uuid = self._uuid_at(each.index, seen)
            if self._is_left_out(uuid, each.index):
                continue
            if uuid is None or uuid in seen or (isinstance(each, UnreadableCard) and uuid not in self._cards):
                strangers[uuid or f"index {each.index}"] = _why_strange(each)
                continue
            seen.add(uuid)
            if isinstance(each, CardFacts):
                self._read(uuid, each, now)
            else:
                card = self._cards[uuid]
                card.found_at, card.readable = now, False
                card.fault(each.problem, now)
        self.strangers = strangers
        self._missed(set(self._cards) - seen, now)

    def not_scanned(self, problem: str, *, now: float) -> None:
        """Nothing could be asked of any card."""
        self._problem = problem
        for card in self._cards.values():
            card.fault(problem, now)

    def heard(self, deaf: Mapping[str, str], *, now: float) -> None:
        """Listening began for all of `to_hear`, except for the cards named here."""
        for uuid, card in self._cards.items():
            card.deaf = deaf.get(uuid, "") and f"its events cannot be heard: {deaf[uuid]}"
            if card.deaf:
                card.fault(card.deaf, now)

    def not_heard(self, problem: str, *, now: float) -> None:
        """No card's events can be heard."""
        for card in self._cards.values():
            card.fault(f"events cannot be heard: {problem}", now)

    def happened(self, event: CardEvent, *, now: float) -> bool:
        """Something that the driver reported; whether it counts."""
        problem = self._rules.problem_in(event)
        cards = [card for uuid, card in self._cards.items() if problem and event.uuid in (None, uuid)]
        for card in cards:
            card.fault(problem, now)
        return bool(cards)

    def _problem_of(self, card: _Card) -> str:
        return card.health.problem or self.unfit.get(card.facts.uuid, "")

    def _read(self, uuid: str, facts: CardFacts, now: float) -> None:
        card = self._cards.setdefault(uuid, _Card(facts, now))
        card.facts, card.found_at, card.readable = facts, now, True
        if card.deaf:
            card.fault(card.deaf, now)
        else:
            card.health = after_good_probe(card.health, now=now)

    def _missed(self, uuids: set[str], now: float) -> None:
        for uuid in uuids:
            card = self._cards[uuid]
            card.readable = False
            card.fault(GONE, now)
            if now - card.found_at >= KEPT_S:
                del self._cards[uuid]

    def _uuid_at(self, index: int, seen: set[str]) -> str | None:
        """Which card is meant where a scan only knows a number: the one that had it and was not read otherwise."""
        return next((uuid for uuid, c in self._cards.items() if c.facts.index == index and uuid not in seen), None)

    def _is_left_out(self, uuid: str | None, index: int) -> bool:
        if uuid is None:
            return index in self._filter.index
        return self._left_out.setdefault(uuid, uuid in self._filter.uuid or index in self._filter.index)


def _why_strange(each: Found) -> str:
    if isinstance(each, UnreadableCard):
        return each.problem
    return "another card has the same uuid" if each.uuid else "it has no uuid"
