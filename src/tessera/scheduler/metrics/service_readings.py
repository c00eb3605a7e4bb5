"""What is read from the parts of a running service at each scrape: what is there now, and totals since the start."""

from __future__ import annotations

from tessera.scheduler.certificates.tls import ServingTls
from tessera.scheduler.features.claims.book import WriteState
from tessera.scheduler.features.gangs.gang import GangState
from tessera.scheduler.journal_file import JournalFile
from tessera.scheduler.metrics.service_metrics import Metrics
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION, CycleState
from tessera.scheduler.service import Service


def add_readings(metrics: Metrics, service: Service, tls: ServingTls, file: JournalFile | None) -> None:
    engine = service.engine
    cycles, gangs, claims = engine.cycles, engine.gangs, engine.claims
    gauge, counter = metrics.add_gauge, metrics.add_counter
    gauge("tessera_pods_in_handover", "Pods between bind and Allocate.", lambda: engine.queue.active)
    gauge("tessera_pods_awaiting_turn", "Binds that wait for a turn.", lambda: engine.queue.waiting)
    gauge("tessera_reservations", "Placements not yet bound.", lambda: cycles.count(*HOLDS_RESERVATION))
    gauge("tessera_pods_refused", "Refused pods that wait for room.", lambda: len(engine.unschedulable))
    gauge(
        "tessera_bindings_uncertain",
        "Bindings of unknown effect, which hold their devices until the pod can be patched.",
        lambda: cycles.count(CycleState.UNCERTAIN),
    )
    gauge(
        "tessera_nominations",
        "Pods for which devices are held until victims have left.",
        lambda: len(service.ledger.nominations),
    )
    gauge(
        "tessera_pods_unfenced",
        "Pods to be touched before this replica decides.",
        lambda: engine.takeover.left,
    )
    gauge(
        "tessera_gangs_waiting",
        "Gangs that wait for members or room.",
        lambda: gangs.count(GangState.WAITING, GangState.NOMINATED),
    )
    gauge(
        "tessera_gangs_planned",
        "Gangs whose places are held, or that are being bound.",
        lambda: gangs.count(GangState.PLANNED, GangState.COMPLETING),
    )
    counter("tessera_gangs_bound", "Gangs that became whole.", lambda: gangs.reports.bound)
    counter("tessera_gang_plans_given_up", "Plans of gangs that came to nothing.", lambda: gangs.reports.given_up)
    gauge(
        "tessera_claims_allocated",
        "ResourceClaims that hold cards, by whichever scheduler.",
        lambda: claims.book.holding,
    )
    gauge(
        "tessera_claims_uncertain",
        "Writes of ResourceClaims of unknown effect, which hold their devices until the claim can be patched.",
        lambda: claims.book.count(WriteState.UNCERTAIN),
    )
    gauge(
        "tessera_pods_awaiting_claims",
        "Pods that wait for a ResourceClaim that they name.",
        lambda: len(claims.reader.waiting()),
    )
    counter(
        "tessera_claim_writes",
        "ResourceClaims written, by result: allocated, or released because their pod could not use them.",
        lambda: {"allocated": claims.writer.allocated, "released": claims.writer.released},
        label="result",
    )
    counter("tessera_events_dropped", "Events given up under pressure.", lambda: service.recorder.dropped)
    gauge("tessera_leader", "1 where this process leads.", lambda: service.is_leader)
    gauge(
        "tessera_certificate_expiry_timestamp_seconds",
        "When the serving certificate ends; 0 where none is served.",
        lambda: tls.expiry,
    )
    gauge(
        "tessera_watch_age_seconds",
        "Seconds since the watch of a resource last said something.",
        service.watch_ages,
        label="resource",
    )
    gauge(
        "tessera_journal_bytes",
        "Memory that the decision journal takes, estimated.",
        lambda: service.journal.bytes,
    )
    counter(
        "tessera_journal_file_errors",
        "Writes of the journal's file that failed.",
        lambda: 0 if file is None else file.errors,
    )
    counter(
        "tessera_journal_file_lost_records",
        "Records that left the journal before they could be written to its file.",
        lambda: 0 if file is None else file.lost,
    )
