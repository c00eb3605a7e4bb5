"""Annotation and label names that belong to no vendor. Vendors' own names are in their modules."""

from __future__ import annotations

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
"""patched on a pending pod so that its version changes, and no binding that was sent before can land"""

PHASE_ALLOCATING = "allocating"
PHASE_SUCCESS = "success"
PHASE_FAILED = "failed"

# -- pod: wishes

NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
NUMA_BIND = "nvidia.com/numa-bind"
"""applies to cards of every vendor, despite its name"""

# -- pod: a container's slice, read by its own environment through fieldRef

_SLICE = "tessera.io/c{container}.{field}"
REMEMBERED = 256
"""cached names per kind"""


@lru_cache(maxsize=REMEMBERED)
def visible_devices(container: int) -> str:
    return _SLICE.format(container=container, field="visible-devices")


@lru_cache(maxsize=REMEMBERED)
def memory_limit(container: int, device: int) -> str:
    return _SLICE.format(container=container, field=f"memory-limit-{device}")


@lru_cache(maxsize=REMEMBERED)
def core_limit(container: int) -> str:
    return _SLICE.format(container=container, field="core-limit")


@lru_cache(maxsize=REMEMBERED)
def mps_memory_limit(container: int) -> str:
    return _SLICE.format(container=container, field="mps-memory-limit")


@lru_cache(maxsize=REMEMBERED)
def mps_thread_percentage(container: int) -> str:
    return _SLICE.format(container=container, field="mps-thread-percentage")


# -- node

NODE_LOCK = "hami.io/mutex.lock"
DEVICE_CORDON = "hami.io/device-cordon"
"""comma list of uuids that take no new grants"""
AGENT = "tessera.io/agent"
"""how the agent on this node allocates slices"""
