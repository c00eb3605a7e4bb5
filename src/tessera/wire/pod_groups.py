"""Which gang a pod belongs to: one reader for every spelling that is in use.

    tessera.io/gang, -size, -min, -topology            Tessera's own, on any pod; no object is needed
    kueue.x-k8s.io/pod-group-name, -total-count        Kueue's groups of plain pods
    scheduling.x-k8s.io/pod-group                      coscheduling: minMember is in a PodGroup object
    scheduling.k8s.io/group-name                       Volcano: minMember is in a PodGroup object
    spec.schedulingGroup.podGroupName                  Kubernetes 1.36 and later: minCount is in a PodGroup object

Each name may be a label or an annotation; the annotation wins. The first spelling that a pod has decides. A group whose
size is in an object may state it on the pod with `tessera.io/gang-size` and `-min` as well, and then needs no object.
Sizes that cannot be meant are refused with what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from tessera.wire.errors import quoted
from tessera.wire.objects import Partial, Pod

GANG = "tessera.io/gang"
GANG_SIZE = "tessera.io/gang-size"
GANG_MIN = "tessera.io/gang-min"
GANG_TOPOLOGY = "tessera.io/gang-topology"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"

GROUP_KEYS = frozenset(
    {GANG, GANG_SIZE, GANG_MIN, GANG_TOPOLOGY, KUEUE_GROUP, KUEUE_COUNT, COSCHEDULING_GROUP, VOLCANO_GROUP}
)
"""all that is read, as label or annotation"""

MAX_MEMBERS = 1024
"""of a gang: as many as were bound together on a real control plane (`bench.gang --members 1024`)"""
LONGEST_NAME = 253
"""characters of a group's name, as of an object's: each place that is held for a member has it"""
LONGEST_LABEL = 317
"""characters of a label's name: 253 of a prefix, a slash and 63"""


class GroupObject(Enum):
    """The API group of the object that holds a group's size, where the pod does not."""

    COSCHEDULING = "scheduling.x-k8s.io"
    VOLCANO = "scheduling.volcano.sh"
    KUBERNETES = "scheduling.k8s.io"


class GangPolicy(Partial, frozen=True):
    min_count: int | None = None


class SchedulingPolicy(Partial, frozen=True):
    gang: GangPolicy | None = None


class PodGroupSpec(Partial, frozen=True):
    min_member: int | None = None
    scheduling_policy: SchedulingPolicy | None = None


class PodGroupObject(Partial, frozen=True):
    """A PodGroup of any of the three API groups."""

    spec: PodGroupSpec = PodGroupSpec()

    @property
    def minimum(self) -> int | None:
        """Members that must be placed together; None if the object does not say, or says what cannot be meant."""
        policy = self.spec.scheduling_policy
        count = policy.gang.min_count if policy is not None and policy.gang is not None else self.spec.min_member
        return count if count is not None and 1 <= count <= MAX_MEMBERS else None


class PodGroup(NamedTuple):
    """What a pod says about its gang. Members of one gang say the same."""

    name: str
    size: int = 0
    """members; 0 if only an object says it"""
    minimum: int = 0
    """members that must be placed and bound together; 0 if only an object says it"""
    topology: str = ""
    """node label whose value the members should share; empty if it does not matter"""
    where: GroupObject | None = None
    """the object that has the size; None if the pod has it"""

    @property
    def is_sized(self) -> bool:
        return self.minimum > 0


class BadPodGroup(NamedTuple):
    """What is wrong with it, and what to write."""

    name: str
    text: str


def read_pod_group(pod: Pod) -> PodGroup | BadPodGroup | None:
    """The pod's gang; None if it belongs to none."""
    metadata = pod.metadata
    if not metadata.annotations and not metadata.labels and pod.spec.scheduling_group is None:
        return None
    given = {**(metadata.labels or {}), **(metadata.annotations or {})}
    found = _named(pod, given)
    if found is None:
        stray = next((key for key in (GANG_SIZE, GANG_MIN, GANG_TOPOLOGY) if key in given), None)
        return BadPodGroup("", f"{stray} has no effect without {GANG}: NAME") if stray is not None else None
    name, size_key, where = found
    if len(name) > LONGEST_NAME:
        return BadPodGroup(name, f"the gang's name has {len(name)} characters; write at most {LONGEST_NAME}")
    sizes: dict[str, int] = {}
    for key in (size_key, GANG_MIN):
        if key in given:
            count = _count(given[key])
            if count is None:
                what = f"{key} is {quoted(given[key])}; write a whole number from 1 to {MAX_MEMBERS}"
                return BadPodGroup(name, what)
            sizes[key] = count
    topology = given.get(GANG_TOPOLOGY, "")
    if len(topology) > LONGEST_LABEL:
        return BadPodGroup(name, f"{GANG_TOPOLOGY} has {len(topology)} characters; write the name of a node label")
    size = sizes.get(size_key, 0)
    if not size and where is None:
        return BadPodGroup(name, f"the gang {quoted(name)} needs {size_key}: the number of its members")
    minimum = sizes.get(GANG_MIN, size)
    if size and minimum > size:
        return BadPodGroup(name, f"{GANG_MIN} is {minimum}, more than {size_key} {size}; write at most {size}")
    return PodGroup(name, size or minimum, minimum, topology, None if minimum else where)


def _named(pod: Pod, given: Mapping[str, str]) -> tuple[str, str, GroupObject | None] | None:
    """The name, the key of the size, and the object that may have it instead."""
    if given.get(GANG):
        return given[GANG], GANG_SIZE, None
    if given.get(KUEUE_GROUP):
        return given[KUEUE_GROUP], KUEUE_COUNT, None
    if given.get(COSCHEDULING_GROUP):
        return given[COSCHEDULING_GROUP], GANG_SIZE, GroupObject.COSCHEDULING
    if given.get(VOLCANO_GROUP):
        return given[VOLCANO_GROUP], GANG_SIZE, GroupObject.VOLCANO
    group = pod.spec.scheduling_group
    if group is not None and group.pod_group_name:
        return group.pod_group_name, GANG_SIZE, GroupObject.KUBERNETES
    return None


def _count(text: str) -> int | None:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_MEMBERS)):
        return None
    return int(text) if 1 <= int(text) <= MAX_MEMBERS else None
