"""What has to be written on a pod to tell how far its handover is.

    allocating --its containers have their devices, no vendor has anything left--> success
        |  +-- some have: only what is left is written
        +--Allocate refused, or kubelet rejected the pod--> failed (what was left stays readable)

Pure. Only a pod in phase `allocating` is ever written.
"""

from __future__ import annotations

from collections.abc import Collection

from tessera.node.handover.bound_pod import FAILED, TO_ALLOCATE, BoundPod
from tessera.wire import keys
from tessera.wire.pod_devices import encode_pod_devices


def owed(pod: BoundPod, *, done: Collection[int], failed: bool) -> dict[str, str]:
    """Annotations to write; none where the pod already says it. `done` are positions that were handed out."""
    if not (pod.ours and pod.assigned) or pod.phase != keys.PHASE_ALLOCATING:
        return {}
    if failed or pod.status == FAILED:
        return {keys.BIND_PHASE: keys.PHASE_FAILED}
    if pod.problem and not pod.started:
        return {}
    left = [() if pod.started or at in done else entries for at, entries in enumerate(pod.entries)]
    changes: dict[str, str] = {}
    if tuple(left) != pod.entries:
        changes[TO_ALLOCATE] = encode_pod_devices(left)
    # What another vendor's plugin has not handed out yet is its to finish.
    if not any(left) and not pod.others_left and (pod.started or pod.claims):
        changes[keys.BIND_PHASE] = keys.PHASE_SUCCESS
    return changes
