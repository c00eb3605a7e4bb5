"""The service's own metrics: how long it takes, what it refuses, what waits, and what must stay 0.

What the pipeline reports is counted here. What its parts know already is read from them when it is scraped
(`add_readings`). Everything is in one registry that belongs to one `Metrics`; nothing is global. Series about cards
are in `exposition`. Names end in their unit.
"""

from __future__ import annotations

import math
import platform
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial

import structlog

from tessera import __version__
from tessera.core.ledger.audit import BROKEN, OVERCOMMITTED, AuditFinding
from tessera.core.model.misfits import Reason
from tessera.core.search.selection import Refused
from tessera.scheduler.certificates.tls import ServingTls
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.journal_file import JournalFile
from tessera.scheduler.observer import EvictedEvent, PreemptionEvent, RefusedEvent, SchedulerObserver
from tessera.scheduler.service import Service
from tessera.services.exposition import Found, MetricFamily, Registry, counter, gauge, info, number

log = structlog.get_logger(__name__)

MILLISECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
"""bounds in seconds, around the budgets of filter (2 ms) and webhook (10 ms)"""
REMEMBERED_REFUSALS = 64
"""refusals whose reasons are kept"""
BIND_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
"""bounds up to the extender's HTTP timeout: a bind may wait for its turn"""


class Times:
    """A histogram of seconds."""

    def __init__(self, name: str, text: str, *, bounds: Sequence[float]) -> None:
        self._name, self._text = name, text
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[MetricFamily]:
        family, total = MetricFamily("histogram", self._name, self._text, ["le"]), 0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            family.add(total, [number(bound)], ending="_bucket")
        family.add(total, ending="_count")
        family.add(self._sum, ending="_sum")
        yield family


class Metrics(SchedulerObserver):
    """See the module's text."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._seconds = {
            "filter": Times("tessera_filter_seconds", "Time to answer a filter.", bounds=MILLISECONDS),
            "bind": Times(
                "tessera_bind_seconds", "Time to answer a bind, the wait for a turn included.", bounds=BIND_S
            ),
            "preempt": Times("tessera_preempt_seconds", "Time to answer a preempt.", bounds=MILLISECONDS),
            "webhook": Times("tessera_webhook_seconds", "Time to answer an admission review.", bounds=MILLISECONDS),
        }
        self._search = Times("tessera_preemption_search_seconds", "Time to find victims.", bounds=MILLISECONDS)
        for times in (*self._seconds.values(), self._search):
            registry.register(times.collect)
        self._refusals = Counter({reason.value: 0 for reason in Reason})
        self._preemptions = Counter({"nominated": 0, "no-victims": 0, "given-up": 0})
        self._evicted = 0
        self._writes: Counter[str] = Counter()
        self._findings: dict[str, frozenset[AuditFinding]] = {}
        """by node, what its last audit found"""
        self._reasons_of = lru_cache(REMEMBERED_REFUSALS)(reasons_of)
        self.add_counter(
            "tessera_refusals_total",
            "Filters that found no node, by each reason that occurred.",
            lambda: self._refusals,
            label="reason",
        )
        self.add_counter(
            "tessera_preemptions_total",
            "Searches for victims by their result: nominated, no-victims or given-up.",
            lambda: self._preemptions,
            label="result",
        )
        self.add_counter("tessera_victims_evicted_total", "Pods evicted for other pods.", lambda: self._evicted)
        self.add_counter("tessera_api_writes_total", "Writes to the apiserver.", lambda: self._writes, label="verb")
        self.add_gauge(
            "tessera_devices_overallocated",
            "Devices with more granted than they have; must be 0.",
            lambda: len({(one.node, one.card) for one in self._found(OVERCOMMITTED)}),
        )
        self.add_gauge(
            "tessera_ledger_drift",
            "Differences between the ledger and what it is made from; must be 0.",
            lambda: len(self._found(BROKEN)),
        )
        python, build = platform.python_version(), {"version": __version__, "revision": ""}
        ours = info("tessera_build_info", "What runs.", {**build, "python": python})
        theirs = info(
            "hami_build_info",
            "What runs, in the labels of HAMi.",
            {
                **build,
                "build_date": "",
                "go_version": f"python{python}",
                "compiler": sys.implementation.name,
                "platform": f"{sys.platform}/{platform.machine()}",
            },
        )
        registry.register(lambda: (ours, theirs))

    def observe(self, verb: str, seconds: float) -> None:
        """How long an answer took; `verb` is filter, bind, preempt or webhook."""
        self._seconds[verb].add(seconds)

    def add_gauge(self, name: str, text: str, read: Callable[[], Found], *, label: str = "") -> None:
        """A value that is read when it is scraped."""
        self.registry.register(lambda: [gauge(name, text, read(), label=label)])

    def add_counter(self, name: str, text: str, read: Callable[[], Found], *, label: str = "") -> None:
        """A total since the start that is read when it is scraped."""
        self.registry.register(lambda: [counter(name, text, read(), label=label)])

    # -- what the pipeline reports

    def on_refused(self, event: RefusedEvent) -> None:
        """Every reason that occurred counts once, on however many nodes."""
        # A backlog is refused with the same few objects again and again; looking through all nodes each time would
        # cost more than the answer.
        for reason in self._reasons_of(event.refused):
            self._refusals[reason.value] += 1

    def on_preemption(self, event: PreemptionEvent) -> None:
        result = "nominated" if not event.problem else "given-up" if event.node else "no-victims"
        self._preemptions[result] += 1
        if event.seconds:
            self._search.add(event.seconds)

    def on_evicted(self, event: EvictedEvent) -> None:
        self._evicted += 1

    def on_write(self, verb: str) -> None:
        self._writes[verb] += 1

    def on_audit(self, node: str, findings: Sequence[AuditFinding]) -> None:
        known = self._findings.pop(node, frozenset())
        for finding in findings:
            # A small cluster is audited every second: what lasts is logged once.
            if finding not in known:
                log.error("audit", kind=finding.kind, node=finding.node, card=finding.card, finding=finding.text)
        if findings:
            self._findings[node] = frozenset(findings)

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget what was found on nodes that are not there any more."""
        if self._findings:
            kept = frozenset(nodes)
            self._findings = {node: found for node, found in self._findings.items() if node in kept}

    def _found(self, kind: str) -> list[AuditFinding]:
        return [each for of_node in self._findings.values() for each in of_node if each.kind == kind]

    def render(self) -> bytes:
        """Text format 0.0.4, some kilobytes."""
        return self.registry.render()


def reasons_of(refused: Refused) -> tuple[Reason, ...]:
    """Each reason once, sorted. Equal verdicts share one object, which makes this cheap."""
    return tuple(sorted({reason for misfit, _ in refused.verdicts for reason, _ in misfit.counts}))


def _engine_readings(view: EngineView) -> Iterator[MetricFamily]:
    """The series of one engine, counted once per scrape."""
    counts = view.counts()
    yield gauge("tessera_pods_in_handover", "Pods between bind and Allocate.", counts.handovers)
    yield gauge("tessera_pods_awaiting_turn", "Binds that wait for a turn.", counts.awaiting_turn)
    yield gauge("tessera_reservations", "Placements not yet bound.", counts.reservations)
    yield gauge("tessera_pods_refused", "Refused pods that wait for room.", counts.refused)
    text = "Bindings of unknown effect, which hold their devices until the pod can be patched."
    yield gauge("tessera_bindings_uncertain", text, counts.uncertain)
    text = "Pods for which devices are held until victims have left."
    yield gauge("tessera_nominations", text, counts.nominations)
    yield gauge("tessera_pods_unfenced", "Pods to be touched before this replica decides.", counts.unfenced)
    yield gauge("tessera_gangs_waiting", "Gangs that wait for members or room.", counts.gangs_waiting)
    text = "Gangs whose places are held, or that are being bound."
    yield gauge("tessera_gangs_planned", text, counts.gangs_planned)
    yield counter("tessera_gangs_bound_total", "Gangs that became whole.", counts.gangs_bound)
    yield counter("tessera_gang_plans_given_up_total", "Plans of gangs that came to nothing.", counts.gangs_given_up)
    text = "ResourceClaims that hold cards, by whichever scheduler."
    yield gauge("tessera_claims_allocated", text, counts.claims_allocated)
    text = "Writes of ResourceClaims of unknown effect, which hold their devices until the claim can be patched."
    yield gauge("tessera_claims_uncertain", text, counts.claims_uncertain)
    text = "Pods that wait for a ResourceClaim that they name."
    yield gauge("tessera_pods_awaiting_claims", text, counts.awaiting_claims)
    text = "ResourceClaims written, by result: allocated, or released because their pod could not use them."
    yield counter("tessera_claim_writes_total", text, counts.claim_writes, label="result")


def _defrag_readings(view: EngineView) -> Iterator[MetricFamily]:
    """The series about moves on a schedule; none while that is off."""
    found = view.defrag()
    if found is None:
        return
    figures = found.figures
    yield gauge("tessera_defrag_leader", "1 while this process makes the rounds.", float(found.is_leader))
    text = "Pods and gangs that waited for longer than --defrag-patience, in the last round."
    yield gauge("tessera_defrag_waiting", text, figures.waiting)
    yield gauge("tessera_defrag_evictions_left", "Evictions that the last hour leaves.", found.evictions_left)
    text = "Evictions that one hour allows."
    yield gauge("tessera_defrag_evictions_per_hour", text, found.evictions_per_hour)
    text = "When the last round ended; 0: none has yet."
    yield gauge("tessera_defrag_last_round_timestamp_seconds", text, figures.last_round)
    yield counter("tessera_defrag_plans_total", "Plans that were made for pods and gangs that wait.", figures.plans)
    yield counter("tessera_defrag_moves_total", "Pods that were moved.", figures.moves)
    text = "Plans that were stopped because the cluster deviated."
    yield counter("tessera_defrag_plans_stopped_total", text, figures.stops)
    rounds = {outcome.value: number for outcome, number in figures.rounds.items()}
    yield counter("tessera_defrag_rounds_total", "Rounds, by how they ended.", rounds, label="outcome")


def add_readings(metrics: Metrics, service: Service, tls: ServingTls, file: JournalFile | None) -> None:
    add_gauge, add_counter = metrics.add_gauge, metrics.add_counter
    metrics.registry.register(partial(_engine_readings, service.view))
    metrics.registry.register(partial(_defrag_readings, service.view))
    add_counter("tessera_events_dropped_total", "Events given up under pressure.", lambda: service.recorder.dropped)
    add_gauge("tessera_leader", "1 where this process leads.", lambda: service.is_leader)
    add_gauge(
        "tessera_certificate_expiry_timestamp_seconds",
        "When the serving certificate ends; 0 where none is served.",
        lambda: tls.expiry,
    )
    add_gauge(
        "tessera_watch_age_seconds",
        "Seconds since the watch of a resource last said something.",
        service.watch_ages,
        label="resource",
    )
    add_gauge(
        "tessera_journal_bytes",
        "Memory that the decision journal takes, estimated.",
        lambda: service.journal.bytes,
    )
    add_counter(
        "tessera_journal_file_errors_total",
        "Writes of the journal's file that failed.",
        lambda: 0 if file is None else file.errors,
    )
    add_counter(
        "tessera_journal_file_lost_records_total",
        "Records that left the journal before they could be written to its file.",
        lambda: 0 if file is None else file.lost,
    )
