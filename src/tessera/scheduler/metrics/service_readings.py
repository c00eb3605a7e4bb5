"""What is read from the parts of a running service at each scrape: what is there now, and totals since the start."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tessera.scheduler.certificates.tls import ServingTls
from tessera.scheduler.engine_view import EngineView
from tessera.scheduler.journal_file import JournalFile
from tessera.scheduler.metrics.service_metrics import Metrics
from tessera.scheduler.service import Service
from tessera.services.exposition import Family, counter, gauge


def _engine_readings(view: EngineView) -> Iterator[Family]:
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


def _defrag_readings(view: EngineView) -> Iterator[Family]:
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
