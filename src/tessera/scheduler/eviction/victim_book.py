"""What preemption knows about bound pods and disruption budgets, as the API shows them.

`core.search.victims` explains the traits. A pod whose eviction was accepted counts as leaving before a watch shows it,
so that nothing is evicted twice; one whose eviction was refused is left alone for a while. Budgets are matched when a
search looks at a pod, because few pods are ever looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import NamedTuple

from tessera.core.ledger.holdings import PodFacts
from tessera.core.search.victims import PodTraits
from tessera.scheduler.eviction.disruption_budgets import DisruptionBudgets, Steps
from tessera.scheduler.informers.handler import InformerHandler
from tessera.wire import keys
from tessera.wire.golang import parse_bool
from tessera.wire.objects import Pod, PodDisruptionBudget
from tessera.wire.pod_groups import read_pod_group

OPTED_OUT = f"annotation {keys.PREEMPTIBLE} is false"
STUCK = "it was to leave, and did not in time"
BINDING = "other members of its gang are being bound"
DEFAULT_GRACE_S = 30
"""of a pod that does not say how long it may take to end"""
LEAVING_S = 60.0
"""for which an accepted eviction counts if no watch shows it: then the pod is looked at as it is shown"""


class _KnownPod(NamedTuple):
    traits: PodTraits
    """as the API shows them"""
    node: str


class VictimBook:
    """`PodBook` of one scheduler. Used from the event loop only."""

    def __init__(
        self, *, time: Callable[[], float], on_change: Callable[[str], None], is_binding: Callable[[str], bool]
    ) -> None:
        """`time` in seconds, monotonic; `on_change` gets the node of a pod of which something is new; `is_binding`:
        whether members of a group are being bound, which this book does not know yet."""
        self._is_binding = is_binding
        self._time = time
        self._on_change = on_change
        self._pods: dict[str, _KnownPod] = {}
        self._groups: dict[str, set[str]] = {}
        self._priorities: Counter[int] = Counter()
        self._budgets = DisruptionBudgets()
        self._evicted: dict[str, float] = {}
        """until when an accepted eviction counts"""
        self._spared: dict[str, tuple[float, str]] = {}
        """until when a pod is left alone, and why"""
        self._stuck: set[str] = set()
        """pods that were waited for in vain"""
        self.revision = 0
        """changes whenever an answer of this book may be another one"""

    # -- told by informers and the preemptor

    def put_pod(self, pod: Pod, facts: PodFacts) -> None:
        """A bound pod that holds devices."""
        uid = facts.uid
        found = _KnownPod(read_traits(pod), facts.node)
        known = self._pods.get(uid)
        if known is not None and known != found:
            self._forget(uid)
        self.revision += self._budgets.put_pod(found.traits.namespace, uid, pod.metadata.labels or {})
        if known == found:
            return
        self._pods[uid] = found
        self._priorities[found.traits.priority] += 1
        if found.traits.group:
            self._groups.setdefault(found.traits.group, set()).add(uid)
        self._note(uid)

    def drop_pod(self, uid: str) -> None:
        """It holds nothing any more."""
        known = self._pods.get(uid)
        if known is not None:
            self._forget(uid)
            self._budgets.drop_pod(known.traits.namespace, uid)

    def _forget(self, uid: str) -> None:
        traits = self._pods[uid].traits
        self._evicted.pop(uid, None)
        self._spared.pop(uid, None)
        self._stuck.discard(uid)
        self._priorities[traits.priority] -= 1
        if not self._priorities[traits.priority]:
            del self._priorities[traits.priority]
        if traits.group:
            self._groups[traits.group].discard(uid)
            if not self._groups[traits.group]:
                del self._groups[traits.group]
        self._note(uid)
        del self._pods[uid]

    def put_budget(self, key: str, budget: PodDisruptionBudget) -> None:
        self._budgets.put(key, budget)
        self.revision += 1

    def drop_budget(self, key: str) -> None:
        self._budgets.drop(key)
        self.revision += 1

    def note_evicted(self, uid: str) -> None:
        """The apiserver has accepted the pod's eviction."""
        if uid in self._pods:
            self._evicted[uid] = self._time() + LEAVING_S
            self._note(uid)

    def spare(self, uid: str, reason: str, *, seconds: float) -> None:
        """Leave the pod alone for so long."""
        if uid in self._pods:
            self._spared[uid] = self._time() + seconds, reason
            self._note(uid)

    def note_stuck(self, uid: str) -> None:
        """A victim has not left in all the time that it was waited for: a finalizer may keep it for ever."""
        if uid in self._pods:
            self._stuck.add(uid)
            self._note(uid)

    def forget_overdue(self) -> None:
        """Look at pods again whose time of sparing or leaving is over. Comes before a search."""
        now = self._time()
        for uid in [uid for uid, until in self._evicted.items() if until <= now]:
            del self._evicted[uid]
            self._note(uid)
        for uid in [uid for uid, (until, _) in self._spared.items() if until <= now]:
            del self._spared[uid]
            self._note(uid)

    def _note(self, uid: str) -> None:
        """Something is new about a pod that is known."""
        self.revision += 1
        self._on_change(self._pods[uid].node)

    def node_of(self, uid: str) -> str:
        return self._pods[uid].node if uid in self._pods else ""

    # -- PodBook

    @property
    def lowest_priority(self) -> int | None:
        return min(self._priorities, default=None)

    def traits(self, uid: str) -> PodTraits | None:
        known = self._pods.get(uid)
        if known is None:
            return None
        traits = known.traits
        if traits.group and not traits.protection and self._is_binding(traits.group):
            traits = traits._replace(protection=BINDING)
        if not (self._evicted or self._spared or self._stuck):
            return traits
        if uid in self._stuck:
            return traits._replace(is_leaving=False, protection=traits.protection or STUCK)
        if uid in self._evicted:
            return traits._replace(is_leaving=True)
        _, reason = self._spared.get(uid, (0.0, ""))
        return traits._replace(protection=traits.protection or reason) if reason else traits

    def traits_of(self, uids: Iterable[str]) -> tuple[PodTraits, ...]:
        """The traits of those pods that are known."""
        return tuple(traits for uid in uids if (traits := self.traits(uid)) is not None)

    def members(self, group: str) -> Collection[str]:
        return sorted(self._groups.get(group, ()))

    def budgets(self, uid: str) -> tuple[str, ...]:
        known = self._pods.get(uid)
        return () if known is None else self._budgets.of_pod(known.traits.namespace, uid)

    def match_budgets(self, uids: Iterable[str]) -> Steps:
        return self._budgets.settle((self._pods[uid].traits.namespace, uid) for uid in uids if uid in self._pods)

    def disruptions_allowed(self, budget: str) -> int:
        return self._budgets.disruptions_allowed(budget)


class BudgetInformer(InformerHandler[PodDisruptionBudget]):
    """Handler of the informer of disruption budgets."""

    def __init__(self, book: VictimBook) -> None:
        super().__init__()
        self._book = book

    def put(self, key: str, budget: PodDisruptionBudget) -> None:
        self._book.put_budget(key, budget)

    def drop(self, key: str) -> None:
        self._book.drop_budget(key)


def read_traits(pod: Pod) -> PodTraits:
    """A bound pod as preemption sees it."""
    metadata, annotations = pod.metadata, pod.annotations
    protection = ""
    if keys.MIRROR_POD in annotations:
        protection = "a file of its node defines it"
    elif parse_bool(annotations.get(keys.PREEMPTIBLE, "")) is False:
        protection = OPTED_OUT
    grace = pod.spec.termination_grace_period_seconds
    return PodTraits(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        priority=pod.spec.priority or 0,
        started=_seconds(pod.status.start_time) or _seconds(metadata.creation_timestamp),
        is_leaving=bool(metadata.deletion_timestamp),
        protection=protection,
        group=group_of(pod),
        grace_s=float(DEFAULT_GRACE_S if grace is None else grace),
    )


def group_of(pod: Pod) -> str:
    """The pod's group with its namespace; empty if it stands alone."""
    found = read_pod_group(pod)
    return f"{pod.metadata.namespace}/{found.name}" if found is not None and found.name else ""


def _seconds(text: str | None) -> int:
    """Unix time; 0 if it is not known."""
    try:
        return int(datetime.fromisoformat(text).timestamp()) if text else 0
    except ValueError:
        return 0
