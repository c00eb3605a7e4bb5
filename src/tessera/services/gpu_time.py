"""GPU-seconds by workload and model: shares of cards, summed up over time, and what is left of each card.

A share holds until it is set again, so that work is done when something changes and when the counters are read, never
as time passes. Where the shares of one card add up to more than the card, all of them are reduced in proportion. So
the counters and the remainder always add up to the time of the cards that were there.

Owners come and go, and the number of series must not grow for ever. Above `MAX_SERIES` the counter that has stood
still for longest makes room, once Prometheus must have read its last value; without such a counter new workloads are
counted together, as `OTHERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tessera.wire.objects import Workload

MAX_SERIES = 10_000
KEPT_S = 3600.0
"""for which a counter that stands still is kept in any case: many scrapes, and the windows of most queries"""
OTHERS = Workload("", "", "others")


class SeriesKey(NamedTuple):
    """The labels of one counter."""

    workload: Workload
    model: str


class Sample(NamedTuple):
    key: SeriesKey
    seconds: float


class CardKey(NamedTuple):
    node: str
    uuid: str


@dataclass(slots=True)
class _Counter:
    """Seconds that grow by `rate` per second."""

    since: float
    seconds: float = 0.0
    rate: float = 0.0
    holders: int = 0
    """shares that are counted here now"""

    def at(self, now: float) -> float:
        # Never less than before, whatever rounding left in the rate: Prometheus would take it for a restart.
        return self.seconds + max(0.0, self.rate) * max(0.0, now - self.since)

    def change(self, now: float, rate: float) -> None:
        self.seconds, self.since = self.at(now), now
        self.rate += rate


class _Share(NamedTuple):
    key: SeriesKey
    share: float


@dataclass(slots=True)
class _Card:
    model: str
    shares: dict[str, _Share] = field(default_factory=dict)
    """by pod"""

    @property
    def factor(self) -> float:
        """By which the shares are reduced, so that they fit on the card."""
        return 1.0 / max(1.0, sum(share.share for share in self.shares.values()))


class GpuTime:
    """The counters of one process. They start at 0, as Prometheus expects."""

    def __init__(self, time: Callable[[], float]) -> None:
        """`time` is in seconds and never goes back; while it stands still nothing is counted."""
        self._time = time
        self._cards: dict[CardKey, _Card] = {}
        self._counters: dict[SeriesKey, _Counter] = {}
        self._resting: dict[SeriesKey, float] = {}
        """counters that nothing is counted to, with the time since when; the longest first"""
        self._idle: dict[str, _Counter] = {}
        """what is left, by model"""

    def put_card(self, card: CardKey, model: str) -> None:
        """A card is there. A card whose model changed is another one."""
        known = self._cards.get(card)
        if known is not None and known.model == model:
            return
        self.drop_card(card)
        self._cards[card] = _Card(model)
        self._idle.setdefault(model, _Counter(self._time())).change(self._time(), 1.0)

    def drop_card(self, card: CardKey) -> None:
        """The card is gone, with all shares of it."""
        known = self._cards.get(card)
        if known is None:
            return
        for pod in list(known.shares):
            self.set_share(card, pod, share=0.0)
        del self._cards[card]
        self._idle[known.model].change(self._time(), -1.0)

    def set_share(self, card: CardKey, pod: str, *, share: float, workload: Workload = OTHERS) -> None:
        """What a pod has of a card from now on, 0 to 1. Cards that are not there are left out."""
        known = self._cards.get(card)
        if known is None:
            return
        before = known.shares.get(pod)
        after = min(1.0, max(0.0, share))
        if after == (before.share if before is not None else 0.0):
            return
        now = self._time()
        old_factor = known.factor
        if not after:
            del known.shares[pod]
        else:
            key = before.key if before is not None else self._key(SeriesKey(workload, known.model), now)
            known.shares[pod] = _Share(key, after)
        new_factor = known.factor
        freed = 0.0
        if old_factor != new_factor:
            for other, (key, part) in known.shares.items():
                if other != pod:
                    freed -= self._change(key, now, part * (new_factor - old_factor))
        if before is not None:
            freed -= self._change(before.key, now, -before.share * old_factor, holders=-1)
        if pod in known.shares:
            freed -= self._change(known.shares[pod].key, now, after * new_factor, holders=1)
        self._idle[known.model].change(now, freed)

    def samples(self) -> Iterator[Sample]:
        """All counters of workloads at this moment, even if they are read one after the other."""
        now = self._time()
        counters = list(self._counters.items())
        return (Sample(key, counter.at(now)) for key, counter in counters)

    def idle(self) -> dict[str, float]:
        """By model, seconds of cards that no share was counted for."""
        now = self._time()
        return {model: counter.at(now) for model, counter in self._idle.items()}

    # -- inside

    def _change(self, key: SeriesKey, now: float, rate: float, *, holders: int = 0) -> float:
        counter = self._counters[key]
        counter.change(now, rate)
        if holders:
            counter.holders += holders
            self._resting.pop(key, None)
            if not counter.holders:
                counter.rate = 0.0  # without what rounding left
                self._resting[key] = now
        return rate

    def _key(self, wanted: SeriesKey, now: float) -> SeriesKey:
        """The series that a workload's shares are counted to."""
        if wanted in self._counters:
            return wanted
        if len(self._counters) >= MAX_SERIES:
            longest, since = next(iter(self._resting.items()), (wanted, now))
            if now - since >= KEPT_S:
                del self._counters[longest], self._resting[longest]
            else:
                wanted = SeriesKey(OTHERS, wanted.model)
        self._counters.setdefault(wanted, _Counter(now))
        return wanted
