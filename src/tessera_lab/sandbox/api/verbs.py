"""The verbs of the API on a target, from decoded body to stored object. `rest` serves them over HTTP.

Tests and simulated components in the same process may call them directly: only authentication is above this layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera_lab.sandbox.api import writes
from tessera_lab.sandbox.api.api_state import ApiState, RequestContext
from tessera_lab.sandbox.api.errors import (
    FieldProblem,
    StatusError,
    bad_request,
    invalid,
    method_not_allowed,
    not_found,
    success,
)
from tessera_lab.sandbox.api.kinds import BINDING, EVICTION, LOG, SCALE, Json, ReviewKind
from tessera_lab.sandbox.api.lists_and_watches import Lister, ListQuery, StoredPage
from tessera_lab.sandbox.api.patches import apply_json_patch, merge, merge_strategic
from tessera_lab.sandbox.api.requests import ObjectSelector, RequestTarget, convert, read_object, without_nulls
from tessera_lab.sandbox.api.shapes import DeleteOptions, Eviction
from tessera_lab.sandbox.api.store import Stored
from tessera_lab.sandbox.api.subresources import scaled

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCHES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)


class Verbs:
    """All verbs of the API."""

    def __init__(self, cluster: ApiState) -> None:
        self.cluster = cluster
        self._lister = Lister(cluster.store)

    def get(self, target: RequestTarget) -> Stored:
        if target.subresource in (BINDING, EVICTION):
            raise method_not_allowed()
        stored = self.cluster.store.get(target.kind, target.namespace, target.name)
        if stored is None:
            raise not_found(target.kind, target.name)
        return stored

    def list(self, asked: ListQuery) -> StoredPage:
        return self._lister.page(asked)

    async def create(self, target: RequestTarget, body: Any, call: RequestContext) -> Stored | Json:
        """Creates an object, or a binding or eviction, which return a Status."""
        if target.subresource == BINDING:
            await writes.bind(self.cluster, target.namespace, target.name, body, call=call)
            return success(target.kind, name=target.name, uid="", code=201)
        if target.subresource == EVICTION:
            await self._evict(target, body, call)
            return success(target.kind, name=target.name, uid="", code=201)
        if target.name or (target.kind.namespaced and not target.namespace):
            raise method_not_allowed()
        content = read_object(target.kind, body)
        return await writes.create(self.cluster, target.kind, target.namespace, content, call=call)

    async def replace(self, target: RequestTarget, body: Any, call: RequestContext) -> tuple[Stored, bool]:
        """The object afterwards, and whether it was created."""
        self._must_be_updatable(target)
        if target.subresource == SCALE:
            return await self._update(target, scaled(target.kind, lambda _: body), call), False
        content = read_object(target.kind, body)
        missing = self.cluster.store.get(target.kind, target.namespace, target.name) is None
        if missing and target.kind.create_on_update:
            content["metadata"].setdefault("name", target.name)
            if content["metadata"]["name"] != target.name:
                raise bad_request("the name of the object does not match the name on the URL")
            content["metadata"].pop("resourceVersion", None)
            return await writes.create(self.cluster, target.kind, target.namespace, content, call=call), True
        return await self._update(target, lambda _: read_object(target.kind, body), call), False

    async def patch(self, target: RequestTarget, media: str, body: Any, call: RequestContext) -> tuple[Stored, bool]:
        """The object afterwards, and whether it was created (server-side apply only)."""
        self._must_be_updatable(target)
        if media == MERGE_PATCH and not isinstance(body, dict):
            raise bad_request("a merge patch is an object")
        missing = self.cluster.store.get(target.kind, target.namespace, target.name) is None
        if media == APPLY_PATCH and missing and not target.subresource:
            if not isinstance(body, dict) or not isinstance(body.setdefault("metadata", {}), dict):
                raise bad_request("an applied configuration is an object with metadata")
            body["metadata"].setdefault("name", target.name)
            content = read_object(target.kind, body)
            return await writes.create(self.cluster, target.kind, target.namespace, content, call=call), True
        if target.subresource == SCALE:
            return await self._update(target, scaled(target.kind, _patch_applier(target, media, body)), call), False
        return await self._update(target, _patcher(target, media, body), call), False

    async def delete(self, target: RequestTarget, options: DeleteOptions, call: RequestContext) -> Stored | Json:
        """The object if its kind returns it or it still exists; otherwise a Status."""
        if target.subresource:
            raise method_not_allowed()
        done = await writes.delete(self.cluster, target.kind, target.namespace, target.name, options=options, call=call)
        if done.gone and not target.kind.returns_deleted:
            return success(target.kind, name=target.name, uid=done.stored.uid)
        return done.stored

    async def delete_all(
        self, target: RequestTarget, selector: ObjectSelector, options: DeleteOptions, call: RequestContext
    ) -> StoredPage:
        """Deletes everything that the selector matches."""
        page = self.list(ListQuery(target.kind, target.namespace, selector))
        deleted = []
        for each in page.items:
            if self.cluster.store.get(each.kind, each.namespace, each.name) is None:
                continue
            done = await writes.delete(self.cluster, each.kind, each.namespace, each.name, options=options, call=call)
            deleted.append(done.stored)
        return StoredPage(deleted, self.cluster.store.version)

    def review(self, review: ReviewKind, body: Any, call: RequestContext) -> Json:
        """Every user may do everything here, and every token is a user's whose name it is."""
        content = without_nulls(body) if isinstance(body, dict) else {}
        heading = {"kind": review.kind, "apiVersion": f"{review.group}/{review.version}"}
        if review.kind == "SelfSubjectReview":
            user = {"username": call.user.username, "groups": list(call.user.groups)}
            return heading | {"metadata": {}, "status": {"userInfo": user}}
        spec = content.get("spec", {})
        if review.kind == "TokenReview":
            token = spec.get("token", "")
            known = {"user": {"username": token, "groups": ["system:authenticated"]}} if token else {}
            return heading | {"metadata": {}, "spec": spec, "status": {"authenticated": bool(token), **known}}
        return heading | {"metadata": {}, "spec": spec, "status": {"allowed": True}}

    async def _update(self, target: RequestTarget, change: Callable[[Json], Json], call: RequestContext) -> Stored:
        return await writes.update(
            self.cluster,
            target.kind,
            target.namespace,
            target.name,
            change=change,
            subresource=target.subresource,
            call=call,
        )

    async def _evict(self, target: RequestTarget, body: Any, call: RequestContext) -> None:
        eviction = convert(without_nulls(body), Eviction)
        if eviction.metadata.name not in ("", target.name):
            problem = FieldProblem("metadata.name", "does not match the name on the URL")
            raise invalid(target.kind, target.name, [problem])
        call.dry_run = call.dry_run or "All" in eviction.delete_options.dry_run
        pod = self.cluster.store.get(target.kind, target.namespace, target.name)
        if pod is not None:
            self.cluster.budgets.check_eviction(pod)
        await writes.delete(
            self.cluster,
            target.kind,
            target.namespace,
            target.name,
            options=eviction.delete_options,
            call=call,
        )

    @staticmethod
    def _must_be_updatable(target: RequestTarget) -> None:
        if target.subresource in (BINDING, EVICTION, LOG) or not target.name:
            raise method_not_allowed()


def _patch_applier(target: RequestTarget, media: str, body: Any) -> Callable[[Json], Any]:
    if media == JSON_PATCH:
        return lambda old: apply_json_patch(old, body)
    if media == MERGE_PATCH:
        return lambda old: merge(old, body)
    return lambda old: merge_strategic(target.kind, old, body)


def _patcher(target: RequestTarget, media: str, body: Any) -> Callable[[Json], Json]:
    apply = _patch_applier(target, media, body)

    def change(old: Json) -> Json:
        uid = old["metadata"]["uid"]
        return _checked(target, apply(old), uid)

    return change


def _checked(target: RequestTarget, patched: Any, uid: str) -> Json:
    """Checks that the result of a patch is an object of the kind; if not, it is a 422, unlike a bad body (400)."""
    try:
        content = read_object(target.kind, patched)
    except StatusError as error:
        raise StatusError(422, "Invalid", error.message) from error
    if content["metadata"].get("uid", uid) != uid:
        text = f'Invalid value: "{content["metadata"]["uid"]}": field is immutable'
        raise invalid(target.kind, target.name, [FieldProblem("metadata.uid", text)])
    return content
