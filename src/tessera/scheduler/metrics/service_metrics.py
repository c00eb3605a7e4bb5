"""The service's own metrics: how long it takes, what it refuses, what waits, and what must stay 0.

Everything is in one registry that belongs to one `Metrics`; nothing is global. Series about cards are not here but in
`exposition`. Names end in their unit.
"""

from __future__ import annotations

import platform
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from tessera import __version__
from tessera.core.audit import BROKEN, OVERCOMMITTED, AuditFinding
from tessera.core.misfits import Reason
from tessera.core.selection import Refused
from tessera.scheduler.metrics.counters import Tally, Times
from tessera.scheduler.observer import PreemptionEvent
from tessera.services import exposition as exposing

MILLISECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
"""bounds in seconds, around the budgets of filter (2 ms) and webhook (10 ms)"""
REMEMBERED_REFUSALS = 64
"""refusals whose reasons are kept"""
BIND_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
"""bounds up to the extender's HTTP timeout: a bind may wait for its turn"""


@dataclass(frozen=True, slots=True)
class Levels:
    """What is there now."""

    in_handover: int = 0
    """pods bound whose last Allocate has not ended"""
    awaiting_turn: int = 0
    """binds that wait for another pod's handover"""
    reserved: int = 0
    """reservations not yet bound"""
    refused: int = 0
    """pods that fitted nowhere and wait for room"""
    uncertain: int = 0
    """bindings that were not answered and could not be looked up yet"""
    unfenced: int = 0
    """pods that a take-over has yet to touch"""
    nominated: int = 0
    """pods for which devices are held until their victims have left"""
    gangs_waiting: int = 0
    """gangs without a plan"""
    gangs_planned: int = 0
    """gangs whose places are held, or that are being bound"""
    claims_allocated: int = 0
    """ResourceClaims that hold devices of ours"""
    claims_uncertain: int = 0
    """writes of claims that were not answered and could not be looked up yet"""
    awaiting_claims: int = 0
    """pods that were refused because of their claims"""


class Metrics:
    """See the module's text."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._seconds = {
            "filter": Times("tessera_filter_seconds", "Time to answer a filter.", bounds=MILLISECONDS),
            "bind": Times(
                "tessera_bind_seconds", "Time to answer a bind, the wait for a turn included.", bounds=BIND_SECONDS
            ),
            "preempt": Times("tessera_preempt_seconds", "Time to answer a preempt.", bounds=MILLISECONDS),
            "webhook": Times("tessera_webhook_seconds", "Time to answer an admission review.", bounds=MILLISECONDS),
        }
        self._refusals = Counter(
            "tessera_refusals",
            "Filters that found no node, by each reason that occurred.",
            ["reason"],
            registry=registry,
        )
        for reason in Reason:
            self._refusals.labels(reason.value)
        self._levels = {
            "in_handover": Gauge("tessera_pods_in_handover", "Pods between bind and Allocate.", registry=registry),
            "awaiting_turn": Gauge("tessera_pods_awaiting_turn", "Binds that wait for a turn.", registry=registry),
            "reserved": Gauge("tessera_reservations", "Placements not yet bound.", registry=registry),
            "refused": Gauge("tessera_pods_refused", "Refused pods that wait for room.", registry=registry),
            "uncertain": Gauge(
                "tessera_bindings_uncertain",
                "Bindings of unknown effect, which hold their devices until the pod can be patched.",
                registry=registry,
            ),
            "nominated": Gauge(
                "tessera_nominations", "Pods for which devices are held until victims have left.", registry=registry
            ),
            "unfenced": Gauge(
                "tessera_pods_unfenced", "Pods to be touched before this replica decides.", registry=registry
            ),
            "gangs_waiting": Gauge("tessera_gangs_waiting", "Gangs that wait for members or room.", registry=registry),
            "gangs_planned": Gauge(
                "tessera_gangs_planned", "Gangs whose places are held, or that are being bound.", registry=registry
            ),
            "claims_allocated": Gauge(
                "tessera_claims_allocated",
                "ResourceClaims that hold cards, by whichever scheduler.",
                registry=registry,
            ),
            "claims_uncertain": Gauge(
                "tessera_claims_uncertain",
                "Writes of ResourceClaims of unknown effect, which hold their devices until the claim can be patched.",
                registry=registry,
            ),
            "awaiting_claims": Gauge(
                "tessera_pods_awaiting_claims", "Pods that wait for a ResourceClaim that they name.", registry=registry
            ),
        }
        self._preemptions = Counter(
            "tessera_preemptions",
            "Searches for victims by their result: nominated, no-victims or given-up.",
            ["result"],
            registry=registry,
        )
        for result in ("nominated", "no-victims", "given-up"):
            self._preemptions.labels(result)
        self._evicted = Counter("tessera_victims_evicted", "Pods evicted for other pods.", registry=registry)
        self._search = Times("tessera_preemption_search_seconds", "Time to find victims.", bounds=MILLISECONDS)
        self._gangs_bound = Counter("tessera_gangs_bound", "Gangs that became whole.", registry=registry)
        self._gangs_given_up = Counter(
            "tessera_gang_plans_given_up", "Plans of gangs that came to nothing.", registry=registry
        )
        self._writes = Tally("tessera_api_writes", "Writes to the apiserver.", label="verb")
        for tally in (*self._seconds.values(), self._search, self._writes):
            registry.register(tally)
        self._claim_writes = Counter(
            "tessera_claim_writes",
            "ResourceClaims written, by result: allocated, or released because their pod could not use them.",
            ["result"],
            registry=registry,
        )
        for result in ("allocated", "released"):
            self._claim_writes.labels(result)
        self._dropped = Counter("tessera_events_dropped", "Events given up under pressure.", registry=registry)
        self._overallocated = Gauge(
            "tessera_devices_overallocated", "Devices with more granted than they have; must be 0.", registry=registry
        )
        self._drift = Gauge(
            "tessera_ledger_drift",
            "Differences between the ledger and what it is made from; must be 0.",
            registry=registry,
        )
        self._leader = Gauge("tessera_leader", "1 where this process leads.", registry=registry)
        self._expiry = Gauge(
            "tessera_certificate_expiry_timestamp_seconds",
            "When the serving certificate ends; 0 where none is served.",
            registry=registry,
        )
        self._watches = Gauge(
            "tessera_watch_age_seconds",
            "Seconds since the watch of a resource last said something.",
            ["resource"],
            registry=registry,
        )
        self._journal_bytes = Gauge(
            "tessera_journal_bytes", "Memory that the decision journal takes, estimated.", registry=registry
        )
        self._journal_errors = Counter(
            "tessera_journal_file_errors", "Writes of the journal's file that failed.", registry=registry
        )
        self._journal_lost = Counter(
            "tessera_journal_file_lost_records",
            "Records that left the journal before they could be written to its file.",
            registry=registry,
        )
        self._journal_counts = (0, 0)
        python, build = platform.python_version(), {"version": __version__, "revision": ""}
        Info("tessera_build", "What runs.", registry=registry).info({**build, "python": python})
        Info("hami_build", "What runs, in the labels of HAMi.", registry=registry).info(
            {
                **build,
                "build_date": "",
                "go_version": f"python{python}",
                "compiler": sys.implementation.name,
                "platform": f"{sys.platform}/{platform.machine()}",
            }
        )
        self._findings: dict[str, list[AuditFinding]] = {}
        self._counted: OrderedDict[int, tuple[Refused, tuple[Reason, ...]]] = OrderedDict()

    # -- what happens

    def observe(self, verb: str, seconds: float) -> None:
        """How long an answer took; `verb` is filter, bind, preempt or webhook."""
        self._seconds[verb].add(seconds)

    def refused(self, refused: Refused) -> None:
        """A filter found no node: every reason that occurred counts once, on however many nodes."""
        # A backlog is refused with the same few objects again and again; looking through all nodes each time would
        # cost more than the answer.
        known = self._counted.get(id(refused))
        if known is None or known[0] is not refused:
            known = self._counted[id(refused)] = (refused, reasons_of(refused))
            if len(self._counted) > REMEMBERED_REFUSALS:
                self._counted.popitem(last=False)
        for reason in known[1]:
            self._refusals.labels(reason.value).inc()

    def preempted(self, event: PreemptionEvent) -> None:
        """Victims were looked for, or a nomination ended."""
        result = "nominated" if not event.problem else "given-up" if event.node else "no-victims"
        self._preemptions.labels(result).inc()
        if event.seconds:
            self._search.add(event.seconds)

    def evicted(self) -> None:
        self._evicted.inc()

    def gangs(self, *, bound: int, given_up: int) -> None:
        """More gangs than before became whole, and more plans were given up."""
        self._gangs_bound.inc(bound)
        self._gangs_given_up.inc(given_up)

    def claims(self, *, allocated: int, released: int) -> None:
        """More claims than before were written."""
        self._claim_writes.labels("allocated").inc(allocated)
        self._claim_writes.labels("released").inc(released)

    def wrote(self, verb: str) -> None:
        """One write was sent to the apiserver: bind, patch, create, ..."""
        self._writes.add(verb)

    def dropped_events(self, count: int = 1) -> None:
        self._dropped.inc(count)

    def audited(self, nodes: Iterable[str], findings: Iterable[AuditFinding]) -> None:
        """What an audit of these nodes found, instead of what it found there before ("" is what belongs to no node)."""
        for node in nodes:
            self._findings.pop(node, None)
        for finding in findings:
            self._findings.setdefault(finding.node, []).append(finding)
        self._count_findings()

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget what was found on nodes that are not there any more."""
        if not self._findings:
            return
        kept = {*nodes, ""}
        self._findings = {node: found for node, found in self._findings.items() if node in kept}
        self._count_findings()

    def _count_findings(self) -> None:
        found = [finding for of_node in self._findings.values() for finding in of_node]
        self._overallocated.set(len({(one.node, one.card) for one in found if one.kind == OVERCOMMITTED}))
        self._drift.set(sum(one.kind == BROKEN for one in found))

    # -- what is

    def set_levels(self, levels: Levels) -> None:
        for name, gauge in self._levels.items():
            gauge.set(getattr(levels, name))

    def set_leader(self, leads: bool) -> None:
        self._leader.set(leads)

    def set_certificate_expiry(self, timestamp: float) -> None:
        """Unix time in seconds."""
        self._expiry.set(timestamp)

    def set_watch_ages(self, ages: Mapping[str, float]) -> None:
        for resource, age in ages.items():
            self._watches.labels(resource).set(age)

    def set_journal(self, size: int, *, errors: int, lost: int) -> None:
        """The counts are those since the start."""
        before, self._journal_counts = self._journal_counts, (errors, lost)
        self._journal_bytes.set(size)
        self._journal_errors.inc(errors - before[0])
        self._journal_lost.inc(lost - before[1])

    def render(self) -> bytes:
        """Text format 0.0.4, some kilobytes."""
        return exposing.render(self.registry)


def reasons_of(refused: Refused) -> tuple[Reason, ...]:
    """Each reason once, sorted. Equal verdicts share one object, which makes this cheap."""
    return tuple(sorted({reason for misfit, _ in refused.verdicts for reason, _ in misfit.counts}))
