"""Deletes what has lost its last owner, and finishes deletions that wait for dependents.

    owner removed                        --> dependents without another owner are deleted
    owner waits, `foregroundDeletion`    --> dependents that block it are deleted first, then the finalizer goes
    owner waits, `orphan`                --> dependents forget the owner, then the finalizer goes

Only owners whose removal was seen count as gone: an object may name an owner that this server never had.
"""

from __future__ import annotations

from tessera_lab.sandbox.api import writes
from tessera_lab.sandbox.api.api_state import RequestContext
from tessera_lab.sandbox.api.kinds import KINDS, Json, ResourceKind
from tessera_lab.sandbox.api.requests import RequestTarget
from tessera_lab.sandbox.api.shapes import DeleteOptions, Preconditions
from tessera_lab.sandbox.api.store import Store, StoreChange, Stored
from tessera_lab.sandbox.api.verbs import Verbs
from tessera_lab.sandbox.api.writes import FOREGROUND, ORPHAN
from tessera_lab.sandbox.objects import is_being_deleted

ObjectKey = tuple[ResourceKind, str, str]
"""kind, namespace and name"""

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in KINDS}


def key_of(stored: Stored) -> ObjectKey:
    return stored.kind, stored.namespace, stored.name


def owner_references(content: Json) -> list[Json]:
    found: list[Json] = content["metadata"].get("ownerReferences", [])
    return found


def _owner_uids(content: Json) -> set[str]:
    return {each.get("uid", "") for each in owner_references(content)}


def owner_key(reference: Json, namespace: str) -> ObjectKey | None:
    """Where the owner is, if this server serves its kind."""
    kind = _BY_NAME.get((reference.get("apiVersion", ""), reference.get("kind", "")))
    if kind is None:
        return None
    return kind, namespace if kind.namespaced else "", reference.get("name", "")


class Dependents:
    """Which objects name an owner, and which of these owners were removed. Fed with every change of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._of: dict[str, dict[ObjectKey, None]] = {}
        """owner's uid -> objects that name it"""
        self._gone: set[str] = set()

    def follow(self, change: StoreChange) -> list[ObjectKey]:
        """Notes the change; returns objects that the collector should look at because of it."""
        key = key_of(change.new)
        before = _owner_uids(change.old.object) if change.old is not None else set()
        after = set() if change.removed else _owner_uids(change.new.object)
        for uid in after - before:
            self._of.setdefault(uid, {})[key] = None
        for uid in before - after:
            self._forget(uid, key)
        if not change.removed:
            return [key] if _waits(change.new) else []
        if change.new.uid not in self._of:
            return []
        self._gone.add(change.new.uid)
        return list(self._of[change.new.uid])

    def of(self, owner: Stored) -> list[Stored]:
        """What names this owner, in the order of creation."""
        found = (self._store.get(*key) for key in self._of.get(owner.uid, ()))
        return [each for each in found if each is not None]

    def has_lost(self, reference: Json) -> bool:
        return reference.get("uid") in self._gone

    def note_lost(self, uid: str) -> None:
        """The owner was removed before its dependent was stored."""
        self._gone.add(uid)

    def _forget(self, uid: str, key: ObjectKey) -> None:
        held = self._of.get(uid, {})
        held.pop(key, None)
        if not held:
            self._of.pop(uid, None)
            self._gone.discard(uid)


class GarbageCollector:
    """Looks at one object at a time."""

    def __init__(self, verbs: Verbs, dependents: Dependents) -> None:
        self._verbs = verbs
        self._dependents = dependents

    async def collect(self, stored: Stored) -> None:
        """Deletes the object if its owners are gone; finishes its deletion if it waits for dependents."""
        references = owner_references(stored.object)
        kept = [each for each in references if not self._dependents.has_lost(each)]
        if references and not kept and not is_being_deleted(stored.object):
            await self.delete(stored)
        elif len(kept) < len(references):
            await self._write(stored, "ownerReferences", kept)
        elif _waits(stored):
            await self._finish(stored)

    async def delete(self, stored: Stored, *, policy: str = "Background") -> None:
        options = DeleteOptions(propagation_policy=policy, preconditions=Preconditions(uid=stored.uid))
        target = RequestTarget(stored.kind, stored.namespace, stored.name)
        await self._verbs.delete(target, options, RequestContext())

    async def _finish(self, owner: Stored) -> None:
        finalizers = owner.object["metadata"]["finalizers"]
        dependents = self._dependents.of(owner)
        if ORPHAN in finalizers:
            for each in dependents:
                others = [ref for ref in owner_references(each.object) if ref.get("uid") != owner.uid]
                await self._write(each, "ownerReferences", others)
        else:
            for each in dependents:
                if not is_being_deleted(each.object):
                    await self.delete(each, policy="Foreground" if self._dependents.of(each) else "Background")
            if self._dependents.of(owner):
                return
        await self._write(owner, "finalizers", [each for each in finalizers if each not in (ORPHAN, FOREGROUND)])

    async def _write(self, stored: Stored, key: str, values: list[object] | list[Json]) -> None:
        def change(content: Json) -> Json:
            content["metadata"][key] = values
            if not values:
                del content["metadata"][key]
            return content

        await writes.update(
            self._verbs.cluster, stored.kind, stored.namespace, stored.name, change=change, call=RequestContext()
        )


def _waits(stored: Stored) -> bool:
    metadata = stored.object["metadata"]
    return "deletionTimestamp" in metadata and bool({ORPHAN, FOREGROUND} & set(metadata.get("finalizers", ())))
