"""The status that kubelet reports at each stage of a pod's life, as strategic merge patches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tessera_lab.sandbox.api.kinds import Json
from tessera_lab.sandbox.objects import is_sidecar, uid_of

ADMISSION_ERROR = "UnexpectedAdmissionError"

INITIALIZED, READY, CONTAINERS_READY, SCHEDULED = "Initialized", "Ready", "ContainersReady", "PodScheduled"


def initializing(pod: Json, done: int, *, at: str, address: str) -> Json:
    """Init containers run one after the other; `done` of them have ended, or keep running as sidecars."""
    inits: Sequence[Json] = pod["spec"].get("initContainers") or ()
    states = [_after_start(each, at) if index < done else _running(at) for index, each in enumerate(inits[: done + 1])]
    states += [_waiting("PodInitializing")] * (len(inits) - len(states))
    apps = [_waiting("PodInitializing") for _ in pod["spec"]["containers"]]
    return _body(
        pod,
        "Pending",
        _conditions(at, initialized=False, ready=False),
        inits=_statuses(inits, states),
        apps=_statuses(pod["spec"]["containers"], apps),
        startTime=at,
        hostIP=address,
    )


def running(pod: Json, *, at: str, address: str) -> Json:
    inits: Sequence[Json] = pod["spec"].get("initContainers") or ()
    apps = pod["spec"]["containers"]
    return _body(
        pod,
        "Running",
        _conditions(at, initialized=True, ready=True),
        inits=_statuses(inits, [_after_start(each, at) for each in inits]),
        apps=_statuses(apps, [_running(at) for _ in apps]),
        startTime=at,
        hostIP=address,
    )


def ended(pod: Json, *, exit_code: int, since: str, at: str) -> Json:
    """The app containers have all ended with this code."""
    inits: Sequence[Json] = pod["spec"].get("initContainers") or ()
    apps = pod["spec"]["containers"]
    conditions = _conditions(at, initialized=True, ready=False, reason="PodFailed" if exit_code else "PodCompleted")
    return _body(
        pod,
        "Failed" if exit_code else "Succeeded",
        conditions,
        inits=_statuses(inits, [_terminated(0, since, at)] * len(inits)),
        apps=_statuses(apps, [_terminated(exit_code, since, at)] * len(apps)),
    )


def rejected(pod: Json, message: str, *, at: str) -> Json:
    """kubelet's message for a pod whose Allocate failed. kubelet does not try again."""
    said = f"Pod was rejected: Allocate failed due to {message}, which is unexpected"
    status = {"phase": "Failed", "reason": ADMISSION_ERROR, "message": said, "startTime": at}
    return {"metadata": {"uid": uid_of(pod)}, "status": status}


def _body(pod: Json, phase: str, conditions: list[Json], *, inits: list[Json], apps: list[Json], **more: str) -> Json:
    status: Json = {"phase": phase, "conditions": conditions, "containerStatuses": apps, **more}
    if inits:
        status["initContainerStatuses"] = inits
    return {"metadata": {"uid": uid_of(pod)}, "status": status}


def _conditions(at: str, *, initialized: bool, ready: bool, reason: str = "") -> list[Json]:
    states = {INITIALIZED: initialized, READY: ready, CONTAINERS_READY: ready, SCHEDULED: True}
    return [
        {"type": kind, "status": str(state), "lastProbeTime": None, "lastTransitionTime": at}
        | ({"reason": reason} if reason and not state else {})
        for kind, state in states.items()
    ]


def _statuses(containers: Iterable[Json], states: Sequence[Json]) -> list[Json]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": "running" in state,
            "started": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        for container, state in zip(containers, states, strict=True)
    ]


def _running(at: str) -> Json:
    return {"running": {"startedAt": at}}


def _waiting(reason: str) -> Json:
    return {"waiting": {"reason": reason}}


def _after_start(container: Json, at: str) -> Json:
    """An init container that is done with: ended, or beside the others from now on."""
    if is_sidecar(container):
        return _running(at)
    return _terminated(0, at, at)


def _terminated(exit_code: int, since: str, at: str) -> Json:
    reason = "Error" if exit_code else "Completed"
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": since, "finishedAt": at}}
