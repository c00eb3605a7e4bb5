"""The state that every verb needs: the store, its watches, admission, and a source of uids and names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tessera_lab.sandbox.api.admission import Admission, Admitted, ApiUser, Attributes
from tessera_lab.sandbox.api.creation import IdentitySource
from tessera_lab.sandbox.api.disruption import DisruptionBudgets
from tessera_lab.sandbox.api.errors import forbidden, not_found
from tessera_lab.sandbox.api.kinds import NAMESPACES, SERVICE_ACCOUNTS, Json, ResourceKind
from tessera_lab.sandbox.api.pod_logs import ReadLog, no_logs
from tessera_lab.sandbox.api.store import Store, StoreChange
from tessera_lab.sandbox.api.watches import WatchHub
from tessera_lab.sandbox.api.webhook_client import Resolver, WebhookClient

FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(slots=True)
class RequestContext:
    """One request: its user, whether it is a dry run, and the warnings of its response."""

    user: ApiUser = field(default_factory=ApiUser)
    dry_run: bool = False
    options: Json = field(default_factory=dict)
    """of the verb, as webhooks see them"""
    warnings: list[str] = field(default_factory=list)


class ApiState:
    """Gives namespaces their service account, and removes terminating namespaces once they are empty."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        seed: int | None = None,
        history_length: int,
        resolver: Resolver | None = None,
    ) -> None:
        self.store = Store(history_length=history_length)
        self.hub = WatchHub(self.store)
        self.identities = IdentitySource(now=now, seed=seed)
        self.caller = WebhookClient(resolver)
        self.now = now
        self.budgets = DisruptionBudgets(self.store)
        self.read_log: ReadLog = no_logs
        """set by whatever runs the containers"""
        self.services: dict[str, str] = {}
        """URLs behind services/proxy, by `namespace/name:port`; set by whatever serves them"""
        self._admission = Admission(self.store, self.caller)
        self.store.listen(self._follow_namespaces)
        for name in FIRST_NAMESPACES:
            self.store.put(NAMESPACES, self._new_namespace(name))

    async def admit(self, attributes: Attributes, call: RequestContext) -> Json | None:
        """The object after admission. Raises if it is refused."""
        admitted: Admitted = await self._admission.admit(attributes, uid=self.identities.uid())
        call.warnings += admitted.warnings
        return admitted.content

    def check_namespace(self, kind: ResourceKind, namespace: str, name: str) -> None:
        """Refuses new objects if their namespace is missing or terminating."""
        if not kind.namespaced:
            return
        held = self.store.get(NAMESPACES, "", namespace)
        if held is None:
            raise not_found(NAMESPACES, namespace)
        if "deletionTimestamp" in held.object["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(kind, name, why)

    def _follow_namespaces(self, change: StoreChange) -> None:
        changed = change.new
        if changed.kind is NAMESPACES and change.old is None:
            self.store.put(SERVICE_ACCOUNTS, self._new_service_account(changed.name))
        elif changed.kind.namespaced and change.removed:
            space = self.store.get(NAMESPACES, "", changed.namespace)
            terminating = space is not None and "deletionTimestamp" in space.object["metadata"]
            if space is not None and terminating and self.store.namespace_is_empty(changed.namespace):
                self.store.remove(space)

    def _new_namespace(self, name: str) -> Json:
        metadata = self._identity(name) | {"labels": {"kubernetes.io/metadata.name": name}}
        return {"metadata": metadata, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}

    def _new_service_account(self, namespace: str) -> Json:
        return {"metadata": self._identity("default") | {"namespace": namespace}}

    def _identity(self, name: str) -> Json:
        return {
            "name": name,
            "uid": self.identities.uid(),
            "creationTimestamp": self.identities.timestamp(),
        }
