"""All cards seen so far, with their last facts and their health.

    healthy --fault--> unhealthy --good probe--> recovering --GOOD_PROBES, and quiet for long enough--> healthy
                           ^                         |
                           +---------fault-----------+

Quiet means no fault. Each relapse doubles the quiet period, up to the cap of QUIET; a card that stayed healthy for
FORGIVEN_S starts afresh. Nothing else makes a card healthy, whatever the fault was, and a fault of one card changes no
other card. A card that cannot be read keeps its last facts. A card that disappeared is listed as unhealthy for KEPT_S,
so that kubelet sees an unhealthy device instead of a smaller node. Cards excluded by the configuration are never
listed. Nothing here waits; the caller supplies the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tessera.host.cards import CardEvent, CardFacts, Found, UnreadableCard
from tessera.kube.backoff import Backoff
from tessera.node.fleet import CardState, Fleet
from tessera.node.settings import AgentSettings

GOOD_PROBES = 3
"""in a row, before a card is trusted again"""
QUIET = Backoff(initial=60.0, cap=1800.0)
"""how long a card must be without a fault, by its relapses"""
FORGIVEN_S = 6 * 3600.0
"""of health, after which earlier relapses do not count"""
UNKNOWN = "unknown fault"
KEPT_S = 600.0
"""how long a card stays listed after it disappeared"""
NOT_READ = Fleet(problem="the cards have not been read yet")
GONE = "not found any more"


@dataclass(frozen=True, slots=True)
class Health:
    """The health of one card. Times are in seconds of a monotonic clock."""

    problem: str = ""
    """why it takes no new work; empty if healthy"""
    faults: int = 0
    """all so far"""
    spells: int = 0
    """how often it became unhealthy and was not forgiven"""
    good_probes: int = 0
    """since the last fault"""
    changed_at: float = 0.0
    """time of the last fault or recovery"""

    @property
    def healthy(self) -> bool:
        return not self.problem

    @property
    def quiet_s(self) -> float:
        """How long it must be without a fault before it recovers."""
        return QUIET.ceiling(self.spells)


def after_fault(health: Health, problem: str, *, now: float) -> Health:
    """Without a good probe in between, the first problem stays, because it is the cause."""
    spells = health.spells
    if health.healthy:
        spells = 1 if now - health.changed_at >= FORGIVEN_S else spells + 1
    follows = not health.healthy and not health.good_probes
    return Health(
        problem=health.problem if follows else problem or UNKNOWN,
        faults=health.faults + 1,
        spells=spells,
        changed_at=now,
    )


def after_good_probe(health: Health, *, now: float) -> Health:
    """The card was read, and its events can be received."""
    if health.healthy:
        return health
    good = health.good_probes + 1
    if good >= GOOD_PROBES and now - health.changed_at >= health.quiet_s:
        return Health(faults=health.faults, spells=health.spells, changed_at=now)
    return replace(health, good_probes=min(good, GOOD_PROBES))


@dataclass(slots=True)
class _Card:
    facts: CardFacts
    found_at: float
    health: Health = field(default_factory=Health)
    readable: bool = True
    deaf: str = ""
    """why its events cannot be received"""

    def fault(self, problem: str, now: float) -> None:
        self.health = after_fault(self.health, problem, now=now)


class Roster:
    """`now` is in seconds of a monotonic clock."""

    def __init__(self, settings: AgentSettings) -> None:
        self._cards: dict[str, _Card] = {}
        self._problem = NOT_READ.problem
        self.unfit: Mapping[str, str] = {}
        """why healthy cards cannot be shared in the node's mode, by uuid; not a fault of the card"""
        self.strangers: Mapping[str, str] = {}
        """why cards of the last scan could never be read, by uuid or index"""
        self.use(settings)

    def use(self, settings: AgentSettings) -> None:
        """Takes other settings; what is known of the cards stays."""
        self._rules = settings.health
        self._node = settings.node
        self._filter = settings.node.filtered
        self._left_out: dict[str, bool] = {}
        """decided when a card is first seen: after a card is lost, the driver may renumber the others"""
        self._modes: dict[str, str] = {}
        """by uuid, decided in the same way; only cards whose mode the configuration names"""
        self._named: set[str | int] = set()
        """uuids and indices of `card_modes` that a card has had"""
        for uuid, card in list(self._cards.items()):
            if self._is_left_out(uuid, card.facts.index):
                del self._cards[uuid]
            else:
                self._decide_mode(card.facts)
            # Listening with the new settings reports it again.
            card.deaf = ""

    @property
    def fleet(self) -> Fleet:
        cards = sorted(self._cards.values(), key=lambda card: (card.facts.index, card.facts.uuid))
        return Fleet(
            tuple(
                CardState(card.facts, self._problem_of(card), self._modes.get(card.facts.uuid, "")) for card in cards
            ),
            self._problem,
        )

    @property
    def unknown_names(self) -> tuple[str, ...]:
        """Cards that the configuration gives a mode and that are not there."""
        if self._problem:
            return ()
        every = [name for each in self._node.card_modes for name in (*each.uuid, *each.index)]
        return tuple(
            each if isinstance(each, str) else f"index {each}"
            for each in dict.fromkeys(every)
            if each not in self._named
        )

    @property
    def is_well(self) -> bool:
        return not self._problem and not self.strangers and all(card.health.healthy for card in self._cards.values())

    @property
    def faults(self) -> Mapping[str, int]:
        """All faults so far, by card."""
        return {uuid: card.health.faults for uuid, card in self._cards.items()}

    @property
    def to_listen(self) -> tuple[str, ...]:
        """Cards to listen to."""
        if not self._rules.health_checks:
            return ()
        return tuple(sorted(uuid for uuid, card in self._cards.items() if card.readable))

    @property
    def some_deaf(self) -> bool:
        return any(card.deaf for card in self._cards.values())

    def on_scan(self, found: Sequence[Found], *, now: float) -> None:
        """Takes a scan of all cards."""
        self._problem = ""
        strangers: dict[str, str] = {}
        seen: set[str] = set()
        for each in sorted(found, key=lambda each: isinstance(each, UnreadableCard)):
            uuid = each.uuid or self._uuid_at(each.index, seen)
            if self._is_left_out(uuid, each.index):
                continue
            if isinstance(each, CardFacts):
                seen.add(each.uuid)
                self._read(each, now)
            elif uuid is None or uuid not in self._cards:
                strangers[uuid or f"index {each.index}"] = each.problem
            else:
                seen.add(uuid)
                card = self._cards[uuid]
                card.found_at, card.readable = now, False
                card.fault(each.problem, now)
        self.strangers = strangers
        self._missed(set(self._cards) - seen, now)

    def on_scan_failed(self, problem: str, *, now: float) -> None:
        """The scan failed."""
        self._problem = problem
        for card in self._cards.values():
            card.fault(problem, now)

    def on_listening(self, deaf: Mapping[str, str], *, now: float) -> None:
        """Listening started for all of `to_listen`, except for the cards in `deaf`."""
        for uuid, card in self._cards.items():
            card.deaf = deaf.get(uuid, "") and f"its events cannot be received: {deaf[uuid]}"
            if card.deaf:
                card.fault(card.deaf, now)

    def on_listening_failed(self, problem: str, *, now: float) -> None:
        """Listening failed for all cards."""
        for card in self._cards.values():
            card.fault(f"events cannot be received: {problem}", now)

    def on_event(self, event: CardEvent, *, now: float) -> bool:
        """Takes an event of the driver. Returns whether it is a fault."""
        problem = self._rules.problem_in(event)
        cards = [card for uuid, card in self._cards.items() if problem and event.uuid in (None, uuid)]
        for card in cards:
            card.fault(problem, now)
        return bool(cards)

    def _problem_of(self, card: _Card) -> str:
        return card.health.problem or self.unfit.get(card.facts.uuid, "")

    def _decide_mode(self, facts: CardFacts) -> None:
        if self._node.card_modes and facts.uuid not in self._modes:
            self._modes[facts.uuid] = self._node.mode_of(facts.uuid, facts.index)
            self._named |= {facts.uuid, facts.index}

    def _read(self, facts: CardFacts, now: float) -> None:
        self._decide_mode(facts)
        card = self._cards.setdefault(facts.uuid, _Card(facts, now))
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
        """Returns the card that had this index, if the scan did not read it otherwise."""
        return next((uuid for uuid, c in self._cards.items() if c.facts.index == index and uuid not in seen), None)

    def _is_left_out(self, uuid: str | None, index: int) -> bool:
        if uuid is None:
            return index in self._filter.index
        return self._left_out.setdefault(uuid, uuid in self._filter.uuid or index in self._filter.index)
