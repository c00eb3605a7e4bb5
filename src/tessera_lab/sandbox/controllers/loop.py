"""The loop of all controllers: an object that changed, or whose owner or dependent changed, is looked at again.

    change in the store --> queue of keys --> collect garbage, plan, carry the plan out, write the status

One object at a time, from the latest state, so that no plan is made from half of another. Writes go through the verbs
of the API, webhooks included. A key whose writes are refused is tried again later (`RETRIES`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from tessera.kube.backoff import Backoff
from tessera_lab.sandbox.api import writes
from tessera_lab.sandbox.api.admission import ApiUser
from tessera_lab.sandbox.api.api_state import RequestContext
from tessera_lab.sandbox.api.errors import StatusError
from tessera_lab.sandbox.api.kinds import (
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    REPLICA_SETS,
    STATUS,
    Json,
    ResourceKind,
)
from tessera_lab.sandbox.api.requests import RequestTarget
from tessera_lab.sandbox.api.store import StoreChange, Stored
from tessera_lab.sandbox.api.verbs import MERGE_PATCH, Verbs
from tessera_lab.sandbox.controllers.garbage_collector import (
    Dependents,
    GarbageCollector,
    ObjectKey,
    key_of,
    owner_key,
    owner_references,
)
from tessera_lab.sandbox.controllers.resource_claim import ResourceClaimController
from tessera_lab.sandbox.controllers.workloads import (
    Plan,
    PlannedEvent,
    Planner,
    make_condition,
    plan_deployment,
    plan_job,
    plan_replica_set,
)
from tessera_lab.sandbox.objects import is_being_deleted, name_of, namespace_of, uid_of

PLANNERS: Mapping[ResourceKind, Planner] = {
    DEPLOYMENTS: plan_deployment,
    REPLICA_SETS: plan_replica_set,
    JOBS: plan_job,
}
RETRIES = Backoff(initial=0.2, cap=15.0)
USER = ApiUser("system:kube-controller-manager", ("system:authenticated",))


class ControllerLoop:
    """All controllers of one apiserver. It listens from the start; nothing happens before `run`."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._store = verbs.cluster.store
        self._dependents = Dependents(self._store)
        self._collector = GarbageCollector(verbs, self._dependents)
        self._claims = ResourceClaimController(
            verbs, self._collector, call=RequestContext(user=USER), record=self._record
        )
        self._queue: dict[ObjectKey, None] = {}
        self._some = asyncio.Event()
        self._failures: dict[ObjectKey, int] = {}
        self._store.listen(self._on_change)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._queue:
                key = next(iter(self._queue))
                del self._queue[key]
                await self._sync_or_retry(key)

    def _on_change(self, change: StoreChange) -> None:
        for key in self._dependents.follow(change):
            self._add(key)
        for reference in owner_references(change.new.object):
            owner = owner_key(reference, change.new.namespace)
            if owner is not None:
                self._add(owner)
        for key in self._claims.affected(change):
            self._add(key)
        if change.new.kind in PLANNERS and not change.removed:
            self._add(key_of(change.new))

    def _add(self, key: ObjectKey) -> None:
        self._queue[key] = None
        self._some.set()

    async def _sync_or_retry(self, key: ObjectKey) -> None:
        try:
            await self._sync(key)
        except StatusError:
            self._failures[key] = failures = self._failures.get(key, 0) + 1
            asyncio.get_running_loop().call_later(RETRIES.delay(failures), self._add, key)
        else:
            self._failures.pop(key, None)

    async def _sync(self, key: ObjectKey) -> None:
        stored = self._store.get(*key)
        if stored is None:
            return
        await self._collector.collect(stored)
        if self._store.get(*key) is stored:
            await self._claims.sync(stored)
        planner = PLANNERS.get(stored.kind)
        if planner is None or self._store.get(*key) is not stored or is_being_deleted(stored.object):
            return
        owned = [each for each in self._dependents.of(stored) if _is_controlled(each, stored)]
        plan = planner(stored.object, [each.object for each in owned], self._verbs.cluster.identities.timestamp())
        refusal: StatusError | None = None
        try:
            await self._carry_out(plan, stored)
        except StatusError as error:
            refusal = error
        await self._write_status(stored, _with_failure(plan.status, stored, refusal, self._now()), plan)
        if refusal is not None:
            raise refusal

    async def _carry_out(self, plan: Plan, owner: Stored) -> None:
        for each in plan.delete:
            found = self._store.get(*_key(each))
            if found is not None and found.uid == uid_of(each):
                await self._collector.delete(found)
                text = f"Deleted {each['kind'].lower()}: {name_of(each)}"
                await self._record(owner, PlannedEvent("SuccessfulDelete", text))
        for change in plan.change:
            target = RequestTarget(*_key(change.target))
            await self._verbs.patch(target, MERGE_PATCH, change.patch, RequestContext(user=USER))
            if change.event is not None:
                await self._record(owner, change.event)
        for content in plan.create:
            await self._create(owner, content)

    async def _create(self, owner: Stored, content: Json) -> None:
        kind = _key(content)[0]
        try:
            target = RequestTarget(kind, owner.namespace)
            made = await self._verbs.create(target, content, RequestContext(user=USER))
        except StatusError as error:
            await self._record(owner, PlannedEvent("FailedCreate", f"Error creating: {error.message}", warning=True))
            raise
        assert isinstance(made, Stored)
        await self._record(owner, PlannedEvent("SuccessfulCreate", f"Created {kind.kind.lower()}: {made.name}"))
        held = self._store.get(*key_of(owner))
        if held is None or held.uid != owner.uid:
            # The owner was deleted while the webhooks were asked.
            self._dependents.note_lost(owner.uid)
            self._add(key_of(made))

    async def _write_status(self, owner: Stored, status: Json, plan: Plan) -> None:
        held = self._store.get(*key_of(owner))
        if held is None or held.uid != owner.uid or held.object.get("status") == status:
            return
        await writes.update(
            self._verbs.cluster,
            *key_of(owner),
            change=lambda content: content | {"status": status},
            subresource=STATUS,
            call=RequestContext(user=USER),
        )
        for event in plan.events:
            await self._record(owner, event)

    async def _record(self, owner: Stored, planned: PlannedEvent) -> None:
        """Writes an event; the same event again is counted."""
        digest = hashlib.sha256(f"{owner.uid} {planned.reason} {planned.message}".encode()).hexdigest()
        target = RequestTarget(EVENTS, owner.namespace, f"{owner.name}.{digest[:16]}")
        old = self._store.get(EVENTS, target.namespace, target.name)
        event: Json = {
            "metadata": {"name": target.name, "namespace": target.namespace},
            "involvedObject": {
                "apiVersion": owner.kind.api_version,
                "kind": owner.kind.kind,
                "namespace": owner.namespace,
                "name": owner.name,
                "uid": owner.uid,
            },
            "reason": planned.reason,
            "message": planned.message,
            "type": "Warning" if planned.warning else "Normal",
            "source": {"component": f"{owner.kind.kind.lower()}-controller"},
            "count": old.object["count"] + 1 if old is not None else 1,
            "firstTimestamp": old.object["firstTimestamp"] if old is not None else self._now(),
            "lastTimestamp": self._now(),
        }
        try:
            await self._verbs.replace(target, event, RequestContext(user=USER))
        except StatusError:
            # In a namespace that is being deleted, for example; events are never worth a retry.
            return

    def _now(self) -> str:
        return self._verbs.cluster.identities.timestamp()


def _with_failure(status: Json, owner: Stored, refusal: StatusError | None, at: str) -> Json:
    """Replica sets say in their status why pods are missing."""
    if refusal is None or owner.kind is not REPLICA_SETS:
        return status
    said = make_condition(owner.object, "ReplicaFailure", True, reason="FailedCreate", message=refusal.message, at=at)
    return status | {"conditions": [said]}


def _is_controlled(dependent: Stored, owner: Stored) -> bool:
    return any(each.get("uid") == owner.uid and each.get("controller") for each in owner_references(dependent.object))


def _key(content: Json) -> ObjectKey:
    reference = {"apiVersion": content["apiVersion"], "kind": content["kind"]}
    found = owner_key(reference | {"name": content["metadata"].get("name", "")}, namespace_of(content))
    assert found is not None, f"{content['kind']} is not served"
    return found
