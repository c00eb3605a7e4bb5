"""Jobs: pods run until enough of them have succeeded, or too many have failed.

Simulated containers do nothing, so the pods of Jobs end by themselves after `RUN_S`; their annotations say so to
kubelet and may say otherwise. A failed container fails its pod, whatever the restart policy. Indexes, deadlines and
failure policies are not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.api.shapes import JobSpec
from tessera_lab.sandbox.controllers.plan import (
    Plan,
    PlannedEvent,
    active_pods,
    counts,
    is_ready,
    make_condition,
    new_pod,
)
from tessera_lab.sandbox.nodes.kubelet import RUN_FOR
from tessera_lab.sandbox.objects import condition_of, phase_of

RUN_S = 3
"""seconds that a pod of a Job runs"""
COMPLETE, FAILED, SUSPENDED = "Complete", "Failed", "Suspended"


def plan_job(owner: Json, pods: Sequence[Json], at: str) -> Plan:
    old: Json = owner.get("status", {})
    if any((condition_of(owner, kind) or {}).get("status") == "True" for kind in (COMPLETE, FAILED)):
        return Plan(old)
    spec = msgspec.convert(owner["spec"], JobSpec)
    active = active_pods(pods)
    succeeded = sum(phase_of(pod) == "Succeeded" for pod in pods)
    failed = sum(phase_of(pod) == "Failed" for pod in pods)
    end = _end(spec, active=len(active), succeeded=succeeded, failed=failed)
    wanted = 0 if end is not None or spec.suspend else _wanted(spec, len(active), succeeded)
    status = {
        "startTime": old.get("startTime", at),
        **counts(active=len(active), ready=sum(is_ready(pod) for pod in active), succeeded=succeeded, failed=failed),
    }
    events: tuple[PlannedEvent, ...] = ()
    if end is not None:
        kind, reason, message = end
        status["conditions"] = [make_condition(owner, kind, True, reason=reason, message=message, at=at)]
        # What still runs is deleted below, so nothing is active from now on.
        status = {key: value for key, value in status.items() if key not in ("active", "ready")}
        if kind == COMPLETE:
            status["completionTime"] = at
        done = PlannedEvent("Completed", "Job completed")
        events = (done if kind == COMPLETE else PlannedEvent(reason, message, warning=True),)
    elif spec.suspend or condition_of(owner, SUSPENDED):
        said = "JobSuspended" if spec.suspend else "JobResumed"
        text = f"Job {'suspended' if spec.suspend else 'resumed'}"
        status["conditions"] = [make_condition(owner, SUSPENDED, spec.suspend, reason=said, message=text, at=at)]
    run = {RUN_FOR: str(RUN_S)}
    return Plan(
        status,
        delete=tuple(active[wanted:]),
        create=tuple(new_pod(owner, annotations=run) for _ in range(wanted - len(active))),
        events=events,
    )


def _wanted(spec: JobSpec, active: int, succeeded: int) -> int:
    """How many pods should run now."""
    if spec.completions is None:
        # The first success says that the work is done; the others finish what they have begun.
        return active if succeeded else spec.parallelism
    return min(spec.parallelism, max(0, spec.completions - succeeded))


def _end(spec: JobSpec, *, active: int, succeeded: int, failed: int) -> tuple[str, str, str] | None:
    """How the job ended, with reason and message; None while it has not."""
    if failed > spec.backoff_limit:
        return FAILED, "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    is_done = succeeded >= spec.completions if spec.completions is not None else bool(succeeded) and not active
    return (COMPLETE, "CompletionsReached", "Reached expected number of succeeded pods") if is_done else None
