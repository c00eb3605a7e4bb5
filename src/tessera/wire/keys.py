"""Annotation and label names that belong to no vendor. Vendors' own names are in their modules."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

# -- pod: the decision

ASSIGNED_NODE = "hami.io/vgpu-node"
"""annotation, and a label of the same name and value"""
ASSIGNED_TIME = "hami.io/vgpu-time"
"""unix seconds, decimal"""
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
"""unix seconds, decimal"""
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
RETRY = "tessera.io/retry"
"""patched on a pending pod to make kube-scheduler ask again"""
FENCE = "tessera.io/fence"
"""patched on a pending pod so that its version changes, and no binding that was sent before can land; a label where
annotations are full"""

MIRROR_POD = "kubernetes.io/config.mirror"
"""kubelet's, on a pod that a file of its node defines; no API call ends it"""
TURNOVER = "tessera.io/turnover"
"""written with the binding under a policy that looks ahead: the turnover that it was decided by, from 0 to 1. The pods
that had ended by then may be gone, and with them what a scheduler that starts, or `explain`, could tell it from"""

CLAIM_DEVICES = "tessera.io/claim-devices"
"""written with the binding of every pod with ResourceClaims: what they hold for it (`wire.pod_devices`)"""

NOMINATED = "tessera.io/nominated-node"
"""written with `status.nominatedNodeName`, which kube-scheduler writes too: what is equal is this scheduler's"""

PHASE_ALLOCATING = "allocating"
PHASE_SUCCESS = "success"
PHASE_FAILED = "failed"

# -- pod: wishes

PREEMPTIBLE = "tessera.io/preemptible"
"""`false`: the pod is never evicted for another one"""


def card_rule(setting: str) -> str:
    """The annotation with which a pod sets a number for a card rule."""
    return f"tessera.io/{setting}"


NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
NUMA_BIND = "nvidia.com/numa-bind"
"""applies to cards of every vendor, despite its name"""

# -- pod: a container's slice, read by its own environment through fieldRef

REMEMBERED = 256
"""cached names per kind"""
SLICE_KEY = re.compile(r"tessera\.io/c\d+\.")
"""how all of them begin"""


def _slice_key(field: str) -> Callable[[int], str]:
    """The name of one annotation, by the container's position."""
    return lru_cache(maxsize=REMEMBERED)(lambda container: f"tessera.io/c{container}.{field}")


visible_devices = _slice_key("visible-devices")
core_limit = _slice_key("core-limit")
mps_memory_limit = _slice_key("mps-memory-limit")
mps_thread_percentage = _slice_key("mps-thread-percentage")


@lru_cache(maxsize=REMEMBERED)
def memory_limit(container: int, device: int) -> str:
    return f"tessera.io/c{container}.memory-limit-{device}"


# -- node

NODE_LOCK = "hami.io/mutex.lock"
DEVICE_CORDON = "hami.io/device-cordon"
"""comma list of uuids that take no new grants"""
AGENT = "tessera.io/agent"
"""how the agent on this node allocates slices"""

# -- dynamic resource allocation

DRA_DRIVER = "gpu.tessera.io"
"""the driver of this project's devices; also the domain of their attributes, capacities and taints"""
