"""The metrics of `tessera defrag run`. Each scrape reads the figures as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tessera.maintenance.defragmenter.controller import Outcome, RoundFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeView:
    """The state of the process at one moment."""

    is_leader: bool
    figures: RoundFigures
    rounds: Mapping[Outcome, int] = field(default_factory=dict)
    evictions_left: int
    evictions_per_hour: int
    last_round: float
    """unix seconds; 0: none yet"""


class DefragmenterMetrics(Collector):
    """All metrics of the process."""

    def __init__(self, view: Callable[[], ScrapeView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        gauges: list[tuple[str, str, float]] = [
            ("leader", "1 while this process holds the Lease", float(view.is_leader)),
            ("waiting", "Pods and gangs that waited for longer than --patience, in the last round",
             view.figures.waiting),
            ("evictions_left", "Evictions that the last hour leaves", view.evictions_left),
            ("evictions_per_hour", "Evictions that one hour allows", view.evictions_per_hour),
            ("last_round_timestamp_seconds", "When the last round ended; 0: none has yet", view.last_round),
        ]  # fmt: skip
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"tessera_defrag_{name}", text, value=value)
        counters: list[tuple[str, str, int]] = [
            ("plans", "Plans that were made for pods and gangs that wait", view.figures.plans),
            ("moves", "Pods that were moved", view.figures.moves),
            ("plans_stopped", "Plans that were stopped because the cluster deviated", view.figures.stops),
        ]
        for name, text, count in counters:
            yield CounterMetricFamily(f"tessera_defrag_{name}", text, value=count)
        rounds = CounterMetricFamily("tessera_defrag_rounds", "Rounds, by how they ended", labels=["outcome"])
        for outcome in Outcome:
            rounds.add_metric([outcome.value], view.rounds.get(outcome, 0))
        yield rounds
