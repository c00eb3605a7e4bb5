"""Deployments: one ReplicaSet for each template, and rolling replacement of the pods of the older ones.

    new ReplicaSet grows while replicas + surge allow it --> older ones shrink while enough pods are available --> ...

With the strategy Recreate, the older ones go to zero first. A rollout has no deadline here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tessera_lab.sandbox.api.kinds import REPLICA_SETS, Json
from tessera_lab.sandbox.api.shapes import WorkloadSpec
from tessera_lab.sandbox.controllers.workloads import (
    Change,
    Plan,
    PlannedEvent,
    controlled,
    copied,
    counts,
    make_condition,
    template_hash,
)
from tessera_lab.sandbox.objects import annotations_of, condition_of, is_being_deleted, name_of

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def plan_deployment(owner: Json, owned: Sequence[Json], at: str) -> Plan:
    rollout = _Rollout(owner, [each for each in owned if not is_being_deleted(each)])
    return Plan(
        rollout.status(at),
        delete=rollout.expired() if rollout.new is not None else (),
        change=rollout.changes(),
        create=rollout.created(),
    )


class _Rollout:
    """The replica sets of a deployment, and the next step from the old ones to the new one."""

    def __init__(self, owner: Json, replica_sets: Sequence[Json]) -> None:
        self._owner = owner
        self._spec = msgspec.convert(owner["spec"], WorkloadSpec)
        self._hash = template_hash(owner)
        by_age = sorted(replica_sets, key=_revision)
        self.new = next((each for each in by_age if _hash_of(each) == self._hash), None)
        self._old = [each for each in by_age if each is not self.new]
        self._all = replica_sets
        self._bounds = _bounds(self._spec)

    def created(self) -> tuple[Json, ...]:
        """The new replica set, if it is missing."""
        if self.new is not None or self._spec.paused or not self._may_start():
            return ()
        spec = copied({"selector": self._owner["spec"]["selector"], "template": self._owner["spec"]["template"]})
        label = {HASH_LABEL: self._hash}
        spec["selector"]["matchLabels"] = spec["selector"].get("matchLabels", {}) | label
        labels = spec["template"]["metadata"].get("labels", {}) | label
        spec["template"]["metadata"]["labels"] = labels
        spec["replicas"] = self._next_size(0)
        kept = {key: text for key, text in annotations_of(self._owner).items() if key not in (LAST_APPLIED, REVISION)}
        made = controlled(
            self._owner,
            REPLICA_SETS.kind,
            {"spec": spec},
            name=f"{name_of(self._owner)}-{self._hash}",
            labels=labels,
            annotations=kept | {REVISION: str(self._next_revision())},
        )
        return (made | {"apiVersion": REPLICA_SETS.api_version},)

    def changes(self) -> tuple[Change, ...]:
        if self.new is None:
            return tuple(self._shrunk()) if self._spec.strategy.type == "Recreate" and not self._spec.paused else ()
        marked: list[Change] = []
        if any(_revision(each) > _revision(self.new) for each in self._old):
            # The template of an older revision is the newest again.
            again = {"metadata": {"annotations": {REVISION: str(self._next_revision())}}}
            marked.append(Change(self.new, again))
        elif annotations_of(self._owner).get(REVISION) != annotations_of(self.new)[REVISION]:
            revision = {"metadata": {"annotations": {REVISION: annotations_of(self.new)[REVISION]}}}
            marked.append(Change(self._owner, revision))
        size = self._next_size(_size(self.new)) if self._may_start() else _size(self.new)
        if size != _size(self.new):
            return (*marked, _scaled(self.new, size))
        return (*marked, *self._shrunk())

    def expired(self) -> tuple[Json, ...]:
        """Replica sets beyond the limit of the history, the oldest ones."""
        unused = [each for each in self._old if not _size(each) and not _replicas(each)]
        return tuple(unused[: max(0, len(unused) - self._spec.revision_history_limit)])

    def status(self, at: str) -> Json:
        replicas = sum(_replicas(each) for each in self._all)
        updated = _replicas(self.new) if self.new is not None else 0
        available = sum(_available(each) for each in self._all)
        wanted = self._spec.replicas
        is_done = self.new is not None and updated == replicas == available == wanted
        name = name_of(self.new) if self.new is not None else f"{name_of(self._owner)}-{self._hash}"
        reason, said = ("NewReplicaSetAvailable", "has successfully progressed") if is_done else (
            "ReplicaSetUpdated", "is progressing"
        )  # fmt: skip
        message = f'ReplicaSet "{name}" {said}.'
        conditions = [
            self._availability(available, at),
            make_condition(self._owner, "Progressing", True, reason=reason, message=message, at=at),
        ]
        failure = condition_of(self.new, "ReplicaFailure") if self.new is not None else None
        return {
            "observedGeneration": self._owner["metadata"]["generation"],
            **counts(
                replicas=replicas,
                updatedReplicas=updated,
                readyReplicas=available,
                availableReplicas=available,
                unavailableReplicas=max(0, max(replicas, wanted) - available),
            ),
            "conditions": [*conditions, failure] if failure is not None else conditions,
        }

    def _availability(self, available: int, at: str) -> Json:
        enough = available >= self._spec.replicas - self._bounds.unavailable
        reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
        message = f"Deployment {'has' if enough else 'does not have'} minimum availability."
        return make_condition(self._owner, "Available", enough, reason=reason, message=message, at=at)

    def _may_start(self) -> bool:
        """Whether the new replica set may grow: with Recreate, only when nothing of the old ones is left."""
        if self._spec.paused:
            return False
        return self._spec.strategy.type != "Recreate" or not any(_size(each) or _replicas(each) for each in self._old)

    def _next_size(self, size: int) -> int:
        wanted = self._spec.replicas
        if self._spec.strategy.type == "Recreate" or size >= wanted:
            return wanted
        room = wanted + self._bounds.surge - sum(_size(each) for each in self._all)
        return min(wanted, size + max(0, room))

    def _shrunk(self) -> list[Change]:
        """Old replica sets with fewer replicas: first those that are not available, then as many as may be missing."""
        if self._spec.paused:
            return []
        if self._spec.strategy.type == "Recreate":
            return [_scaled(each, 0) for each in self._old if _size(each)]
        new = self.new or {"spec": {"replicas": 0}}
        least = self._spec.replicas - self._bounds.unavailable
        spare = sum(_size(each) for each in self._all) - least - (_size(new) - _available(new))
        ready = sum(_available(each) for each in self._all) - least
        changes: list[Change] = []
        for each in self._old:
            broken = max(0, min(_size(each) - _available(each), spare))
            extra = max(0, min(_available(each), spare - broken, ready))
            spare, ready = spare - broken - extra, ready - extra
            if broken + extra:
                changes.append(_scaled(each, _size(each) - broken - extra))
        return changes

    def _next_revision(self) -> int:
        return max((_revision(each) for each in self._all), default=0) + 1


@dataclass(frozen=True, slots=True)
class _Bounds:
    """How many pods there may be beyond the wanted ones, and how many may be missing."""

    surge: int
    unavailable: int


def _bounds(spec: WorkloadSpec) -> _Bounds:
    if spec.strategy.type == "Recreate":
        return _Bounds(0, spec.replicas)
    rolling = spec.strategy.rolling_update
    surge = _share(rolling.max_surge, spec.replicas, round_up=True)
    unavailable = min(_share(rolling.max_unavailable, spec.replicas), spec.replicas)
    return _Bounds(surge, unavailable if surge or unavailable else 1)


def _share(amount: int | str, replicas: int, *, round_up: bool = False) -> int:
    """A number of replicas, or per cent of them."""
    if isinstance(amount, int):
        return amount
    share = int(amount.removesuffix("%")) * replicas
    return -(-share // 100) if round_up else share // 100


def _scaled(replica_set: Json, size: int) -> Change:
    before = _size(replica_set)
    direction = "up" if size > before else "down"
    message = f"Scaled {direction} replica set {name_of(replica_set)} from {before} to {size}"
    return Change(replica_set, {"spec": {"replicas": size}}, PlannedEvent("ScalingReplicaSet", message))


def _size(replica_set: Json) -> int:
    size: int = replica_set["spec"]["replicas"]
    return size


def _replicas(replica_set: Json) -> int:
    found: int = replica_set.get("status", {}).get("replicas", 0)
    return found


def _available(replica_set: Json) -> int:
    """Replicas that will stay available, even if the status is older than the spec."""
    found: int = replica_set.get("status", {}).get("availableReplicas", 0)
    return min(found, _size(replica_set))


def _revision(replica_set: Json) -> int:
    text = annotations_of(replica_set).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _hash_of(replica_set: Json) -> str:
    found: str = replica_set["metadata"].get("labels", {}).get(HASH_LABEL, "")
    return found
